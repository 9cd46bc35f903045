package units

import (
	"fmt"
	"time"
)

// FormatBytes formats a size for display.
func FormatBytes(bytes int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	value, unit := float64(bytes), 0
	for value >= 1000 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}

// FormatSeconds formats a short time for display.
func FormatSeconds(seconds float64) string {
	switch {
	case seconds < 0.001:
		return fmt.Sprintf("%.2f ms", seconds*1e3)
	case seconds < 1:
		return fmt.Sprintf("%.0f ms", seconds*1e3)
	case seconds < 100:
		return fmt.Sprintf("%.2f s", seconds)
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}

// FormatAge formats a time span for display, such as 5m.
func FormatAge(age time.Duration) string {
	switch {
	case age < 2*time.Minute:
		return fmt.Sprintf("%.0fs", age.Seconds())
	case age < 2*time.Hour:
		return fmt.Sprintf("%.0fm", age.Minutes())
	case age < 48*time.Hour:
		return fmt.Sprintf("%.0fh", age.Hours())
	}
	return fmt.Sprintf("%.0fd", age.Hours()/24)
}

// FormatBits formats a bandwidth for display.
func FormatBits(bitsPerSecond float64) string {
	units := []string{"bit/s", "kbit/s", "Mbit/s", "Gbit/s"}
	unit := 0
	for bitsPerSecond >= 1000 && unit < len(units)-1 {
		bitsPerSecond, unit = bitsPerSecond/1000, unit+1
	}
	return fmt.Sprintf("%.3g %s", bitsPerSecond, units[unit])
}
