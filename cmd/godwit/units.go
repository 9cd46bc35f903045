package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// parseBytes reads a size such as 512, 64k, 64m or 1.5g, in powers of 1024.
func parseBytes(text string) (int64, error) {
	number := strings.ToLower(strings.TrimSpace(text))
	number = strings.TrimSuffix(strings.TrimSuffix(number, "b"), "i")
	scale := 1.0
	if i := strings.IndexAny(number, "kmgt"); i >= 0 && i == len(number)-1 {
		scale = math.Pow(1024, float64(strings.IndexByte("kmgt", number[i])+1))
		number = number[:i]
	}
	value, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(value) || value < 0 || value*scale > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q is no size: want for example 512k, 64m or 1g", text)
	}
	return int64(value * scale), nil
}

// formatBytes writes a size for people.
func formatBytes(bytes int64) string {
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

// formatSeconds writes a short time for people.
func formatSeconds(seconds float64) string {
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

// formatAge writes how long ago something was, for people.
func formatAge(age time.Duration) string {
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

// formatBits writes a bandwidth for people.
func formatBits(bitsPerSecond float64) string {
	units := []string{"bit/s", "kbit/s", "Mbit/s", "Gbit/s"}
	unit := 0
	for bitsPerSecond >= 1000 && unit < len(units)-1 {
		bitsPerSecond, unit = bitsPerSecond/1000, unit+1
	}
	return fmt.Sprintf("%.3g %s", bitsPerSecond, units[unit])
}
