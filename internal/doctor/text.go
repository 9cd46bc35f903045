package doctor

import (
	"fmt"
	"io"
	"strings"
)

// Print prints the report for a person.
func (r Report) Print(w io.Writer) error {
	p := &printer{w: w}
	p.line("%s: %s, Linux %s, %s", r.Host.Name, r.Host.System, r.Host.Kernel, r.Host.Architecture)
	if len(r.Requirements) > 0 {
		p.line("")
	}
	for _, requirement := range r.Requirements {
		p.requirement(requirement)
	}
	p.trial(r.Trial)
	if r.Works {
		p.line("\nContainers can be moved from and to this machine.")
	} else {
		p.line("\nContainers cannot be moved from or to this machine:\n  %s", indent(r.Reason()))
	}
	return p.err
}

// printer keeps the first error, so that the layout code stays readable.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

func (p *printer) requirement(r Requirement) {
	detail := r.Version
	if r.Detail != "" {
		detail = strings.TrimSpace(detail + "  " + r.Detail)
	}
	p.line("%s", strings.TrimRight(fmt.Sprintf("  %-8s %-42s %s", r.Status, r.Name, detail), " "))
	if r.Status == Found {
		return
	}
	p.line("  %8s %s: %s", "", r.Level, r.Lost)
	p.advice(r.Advice)
}

func (p *printer) advice(advice Advice) {
	if advice.Debian != "" {
		p.line("  %8s Debian, Ubuntu: %s", "", advice.Debian)
	}
	p.line("  %8s to get it: %s", "", advice.General)
}

func (p *printer) trial(t Trial) {
	const what = "a container with an open connection is checkpointed and restored"
	if t.Result != Passed {
		p.line("\n  trial %s: %s", t.Result, what)
		if t.Advice != nil {
			p.advice(*t.Advice)
		}
		return
	}
	steps := make([]string, len(t.Steps))
	for i, step := range t.Steps {
		steps[i] = fmt.Sprintf("%s %.0f ms", step.Name, step.Seconds*1000)
	}
	p.line("\n  trial %s in %.2f s: %s, and answers (%s)", t.Result, t.Seconds, what,
		strings.Join(steps, ", "))
}

func indent(text string) string { return strings.ReplaceAll(text, "\n", "\n  ") }
