package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/godwit/godwit/internal/units"
)

// Parsed is a flag whose value Parse converts; a rejected value is a usage error.
type Parsed[T any] struct {
	Value  T
	Text   string // the value as text; initially the default
	Kind   string // for help
	Parse  func(string) (T, error)
	WasSet bool
}

// String is the flag's text.
func (p *Parsed[T]) String() string { return p.Text }

// Type is the kind of the flag's value, for help.
func (p *Parsed[T]) Type() string { return p.Kind }

// Set reads the flag's value.
func (p *Parsed[T]) Set(text string) error {
	value, err := p.Parse(text)
	if err != nil {
		return err
	}
	p.Value, p.Text, p.WasSet = value, text, true
	return nil
}

// SizeFlag is a flag for a number of bytes.
func SizeFlag() *Parsed[int64] { return &Parsed[int64]{Kind: "size", Parse: units.ParseSize} }

// OnlyChanges hides the defaults in the help of a command that changes settings: settings without a flag keep
// their values.
func OnlyChanges(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		f.Usage, _, _ = strings.Cut(f.Usage, " (default")
		if f.DefValue != "" && f.Value.Type() != "bool" {
			f.DefValue = "0"
		}
	})
}
