package migration

import (
	"fmt"
	"strings"
	"time"
)

// PostCopyUse says whether memory of containers that leave a node may follow after the handover.
type PostCopyUse string

// The choices of a node.
const (
	// PostCopyAuto lets mode auto choose post-copy or hybrid if both nodes are needed for no longer
	// than DefaultMaxSplit.
	PostCopyAuto PostCopyUse = "auto"
	// PostCopyOnRequest leaves the choice to users: they name the mode, or limit the time for which both
	// nodes may be needed.
	PostCopyOnRequest PostCopyUse = "on-request"
	// PostCopyNever refuses post-copy to everybody.
	PostCopyNever PostCopyUse = "never"
)

// DefaultMaxSplit is for how long mode auto may need both nodes by default.
const DefaultMaxSplit = 10 * time.Second

// MaxMaxSplit is the largest accepted limit: a month.
const MaxMaxSplit = 31 * 24 * time.Hour

// PostCopyUses lists the choices.
func PostCopyUses() []PostCopyUse {
	return []PostCopyUse{PostCopyAuto, PostCopyOnRequest, PostCopyNever}
}

// ParsePostCopyUse reads a choice. Empty is PostCopyAuto.
func ParsePostCopyUse(text string) (PostCopyUse, error) {
	if text == "" {
		return PostCopyAuto, nil
	}
	var names []string
	for _, use := range PostCopyUses() {
		if text == string(use) {
			return use, nil
		}
		names = append(names, string(use))
	}
	return "", fmt.Errorf("unknown use of post-copy %q; choose one of: %s", bounded(text, maxName),
		strings.Join(names, ", "))
}

// SplitLimit bounds for how long a container's state may be on two nodes, when both nodes are needed. The
// zero value is no bound.
type SplitLimit struct {
	Forbidden bool
	Most      time.Duration // 0: any time
	By        string        // who set the limit, and how to change it
}

// Bounded reports whether the decision needs a prediction.
func (l SplitLimit) Bounded() bool { return !l.Forbidden && l.Most > 0 }

// Refuses returns why both nodes may not be needed for so long; empty: they may.
func (l SplitLimit) Refuses(predicted time.Duration) string {
	switch {
	case l.Forbidden:
		return "its state would be on two nodes for a while: " + l.By
	case l.Most > 0 && predicted > l.Most:
		return fmt.Sprintf("its state would be on two nodes for about %s, longer than %s: %s",
			shortTime(predicted), l.Most, l.By)
	}
	return ""
}

// shortTime rounds a time for display.
func shortTime(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}

// SplitLimits returns two bounds of a migration from a node: for a mode that its user asks for, and for a
// mode that auto chooses. A user who chooses hybrid for rounds that do not converge asks for it, even in
// mode auto.
func SplitLimits(use PostCopyUse, s Settings) (asked, auto SplitLimit) {
	switch {
	case use == PostCopyNever:
		asked = SplitLimit{Forbidden: true,
			By: `this node never does that ("godwit agent --post-copy never")`}
		return asked, asked
	case s.MaxSplit > 0:
		asked = SplitLimit{Most: s.MaxSplit, By: "that is what --max-split allows"}
		return asked, asked
	case s.OnNoConvergence == TurnHybrid:
		return SplitLimit{}, SplitLimit{}
	case use == PostCopyOnRequest:
		return SplitLimit{}, SplitLimit{Forbidden: true,
			By: `this node leaves it to users ("godwit agent --post-copy on-request"): ` +
				"name --max-split, or mode post-copy or hybrid"}
	}
	return SplitLimit{}, SplitLimit{Most: DefaultMaxSplit,
		By: "that is what mode auto allows; --max-split allows another time"}
}

// CheckMaxSplit refuses an unreasonable bound. Zero is none.
func CheckMaxSplit(most time.Duration) error {
	if most < 0 || most > MaxMaxSplit {
		return fmt.Errorf("both nodes needed for at most %s: must be more than 0 and at most %s",
			most, MaxMaxSplit)
	}
	return nil
}
