package units

import (
	"testing"
	"time"
)

func TestParseBandwidth(t *testing.T) {
	for text, want := range map[string]int64{
		"100mbit": 100_000_000, "1gbit": 1_000_000_000, "2.5Gbit/s": 2_500_000_000, "64kbit": 64_000,
		"8000bit": 8000, "unlimited": Unlimited, " 10Mbitps ": 10_000_000,
	} {
		got, err := ParseBandwidth(text)
		if err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
		again, err := ParseBandwidth(FormatBandwidth(got))
		if err != nil || again != got {
			t.Errorf("%q is written as %q", text, FormatBandwidth(got))
		}
	}
	for _, text := range []string{"", "5", "mbit", "-1mbit", "1e3mbit", "infmbit", "nanbit", "0mbit", "1bit",
		"1000gbit", "1.2.3mbit", "10mbps", "10 parsec", "0x10mbit"} {
		if got, err := ParseBandwidth(text); err == nil {
			t.Errorf("%q is taken for %d", text, got)
		}
	}
}

func TestParseOthers(t *testing.T) {
	if d, err := ParseDelay("400us"); err != nil || d != 400*time.Microsecond {
		t.Error(d, err)
	}
	if d, err := ParseDelay("0"); err != nil || d != 0 {
		t.Error(d, err)
	}
	for _, text := range []string{"", "5", "-1ms", "2h", "ms"} {
		if d, err := ParseDelay(text); err == nil {
			t.Errorf("%q is taken for %s", text, d)
		}
	}
	for text, want := range map[string]float64{"0": 0, "0.5%": 0.005, "100%": 1, "0%": 0} {
		if got, err := ParseLoss(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "5", "101%", "-1%", "nan%", "%"} {
		if got, err := ParseLoss(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
	for text, want := range map[string]int64{"0": 0, "64MiB": 64 << 20, "1g": 1 << 30, "512k": 512 << 10,
		"1.5M": 3 << 19} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "x", "-1", "1e9", "99999999T", "inf"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

func FuzzParseUnits(f *testing.F) {
	for _, seed := range []string{"100mbit", "20ms", "0.5%", "64MiB", "unlimited", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		bandwidth, err := ParseBandwidth(text)
		if err == nil && bandwidth != Unlimited && (bandwidth < MinBandwidth || bandwidth > MaxBandwidth) {
			t.Errorf("%q gives the bandwidth %d, which no link may have", text, bandwidth)
		}
		rtt, err := ParseDelay(text)
		if err == nil && (rtt < 0 || rtt > MaxDelay) {
			t.Errorf("%q gives the rtt %s, which no link may have", text, rtt)
		}
		loss, err := ParseLoss(text)
		if err == nil && (loss < 0 || loss > 1) {
			t.Errorf("%q gives the loss %v, which no link may have", text, loss)
		}
		if size, err := ParseSize(text); err == nil && size < 0 {
			t.Errorf("%q gives the size %d", text, size)
		}
	})
}
