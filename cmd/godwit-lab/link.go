package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/units"
)

// linkFlags are the flags that describe a link.
type linkFlags struct {
	bandwidth   *cli.Parsed[int64]
	rtt, jitter *cli.Parsed[time.Duration]
	loss        *cli.Parsed[float64]
}

func addLinkFlags(cmd *cobra.Command, start lab.Link) *linkFlags {
	f := &linkFlags{
		bandwidth: &cli.Parsed[int64]{Kind: "rate", Parse: units.ParseBandwidth,
			Value: start.BandwidthBitsPerSecond},
		rtt:    &cli.Parsed[time.Duration]{Kind: "time", Parse: units.ParseDelay, Value: start.RTT},
		jitter: &cli.Parsed[time.Duration]{Kind: "time", Parse: units.ParseDelay, Value: start.Jitter},
		loss:   &cli.Parsed[float64]{Kind: "percent", Parse: units.ParseLoss, Value: start.Loss},
	}
	f.bandwidth.Text = units.FormatBandwidth(start.BandwidthBitsPerSecond)
	f.rtt.Text, f.jitter.Text, f.loss.Text = start.RTT.String(), start.Jitter.String(), "0"
	flags := cmd.Flags()
	flags.Var(f.bandwidth, "bandwidth", "in each direction, such as 100mbit, 1gbit or unlimited")
	flags.Var(f.rtt, "rtt", "round-trip time without queueing, such as 20ms or 400us")
	flags.Var(f.loss, "loss", "packets lost in each direction, such as 0.5%")
	flags.Var(f.jitter, "jitter", "maximum deviation from the round-trip time (the relay keeps packets in "+
		"order)")
	return f
}

// apply changes only the settings whose flags were given.
func (f *linkFlags) apply(link *lab.Link) {
	if f.bandwidth.WasSet {
		link.BandwidthBitsPerSecond = f.bandwidth.Value
	}
	if f.rtt.WasSet {
		link.RTT = f.rtt.Value
	}
	if f.jitter.WasSet {
		link.Jitter = f.jitter.Value
	}
	if f.loss.WasSet {
		link.Loss = f.loss.Value
	}
}

func (f *linkFlags) any() bool {
	return f.bandwidth.WasSet || f.rtt.WasSet || f.jitter.WasSet || f.loss.WasSet
}
