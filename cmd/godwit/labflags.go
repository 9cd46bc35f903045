package main

import (
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/units"
)

// parsed is a flag whose text is read by a function; a bad text is an error of usage.
type parsed[T any] struct {
	value  T
	text   string
	kind   string
	parse  func(string) (T, error)
	wasSet bool
}

func (p *parsed[T]) String() string { return p.text }
func (p *parsed[T]) Type() string   { return p.kind }

func (p *parsed[T]) Set(text string) error {
	value, err := p.parse(text)
	if err != nil {
		return err
	}
	p.value, p.text, p.wasSet = value, text, true
	return nil
}

// positiveVar is a flag for a time that is more than 0: to the agent 0 means that none was given. Without a default start is 0.
func positiveVar(cmd *cobra.Command, value *time.Duration, name string, start time.Duration, usage string) {
	flag := &parsed[time.Duration]{kind: "duration", parse: func(text string) (time.Duration, error) {
		d, err := time.ParseDuration(text)
		if err == nil && d <= 0 {
			err = errors.New("must be more than 0, such as 1m30s")
		}
		*value = d
		return d, err
	}}
	if *value = start; start > 0 {
		flag.text = start.String()
	}
	cmd.Flags().Var(flag, name, usage)
}

// linkFlags are the flags that say what a link is like.
type linkFlags struct {
	bandwidth   *parsed[int64]
	rtt, jitter *parsed[time.Duration]
	loss        *parsed[float64]
}

func addLinkFlags(cmd *cobra.Command, start lab.Link) *linkFlags {
	f := &linkFlags{
		bandwidth: &parsed[int64]{kind: "rate", parse: units.ParseBandwidth, value: start.BandwidthBitsPerSecond},
		rtt:       &parsed[time.Duration]{kind: "time", parse: units.ParseDelay, value: start.RTT},
		jitter:    &parsed[time.Duration]{kind: "time", parse: units.ParseDelay, value: start.Jitter},
		loss:      &parsed[float64]{kind: "percent", parse: units.ParseLoss, value: start.Loss},
	}
	f.bandwidth.text = units.FormatBandwidth(start.BandwidthBitsPerSecond)
	f.rtt.text, f.jitter.text, f.loss.text = start.RTT.String(), start.Jitter.String(), "0"
	flags := cmd.Flags()
	flags.Var(f.bandwidth, "bandwidth", "in each direction, such as 100mbit, 1gbit or unlimited")
	flags.Var(f.rtt, "rtt", "round-trip time without queueing, such as 20ms or 400us")
	flags.Var(f.loss, "loss", "packets lost in each direction, such as 0.5%")
	flags.Var(f.jitter, "jitter", "how much the round-trip time varies either way (with the relay packets keep their order)")
	return f
}

// onlyChanges is for a command whose flags change what is there: what is not named stays, and help tells of no defaults.
func onlyChanges(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		f.Usage, _, _ = strings.Cut(f.Usage, " (default")
		if f.DefValue != "" && f.Value.Type() != "bool" {
			f.DefValue = "0"
		}
	})
}

// apply changes of a link what was asked for.
func (f *linkFlags) apply(link *lab.Link) {
	if f.bandwidth.wasSet {
		link.BandwidthBitsPerSecond = f.bandwidth.value
	}
	if f.rtt.wasSet {
		link.RTT = f.rtt.value
	}
	if f.jitter.wasSet {
		link.Jitter = f.jitter.value
	}
	if f.loss.wasSet {
		link.Loss = f.loss.value
	}
}

func (f *linkFlags) any() bool {
	return f.bandwidth.wasSet || f.rtt.wasSet || f.jitter.wasSet || f.loss.wasSet
}
