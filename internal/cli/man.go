package cli

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// NewManCommand returns the command that writes a manual page for each command of a program, from its help.
func NewManCommand(program string) *cobra.Command {
	return &cobra.Command{
		Use:     "man DIRECTORY",
		Short:   "Write the manual pages of all commands to a directory",
		Example: "  " + program + " man /usr/local/share/man/man1",
		Args:    Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("manual pages: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			listWords(root)
			header := &doc.GenManHeader{Section: "1", Source: root.Name() + " " + root.Version}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fmt.Errorf("manual pages: %w", err)
			}
			return nil
		},
	}
}

// listWords has the lists of words in what commands say of themselves be lists in the manual, too.
func listWords(cmd *cobra.Command) {
	cmd.Long = wordList(cmd.Long)
	for _, child := range cmd.Commands() {
		listWords(child)
	}
}

// listed is a line of a list in help: a word, and what it means. What follows is indented more.
var listed = regexp.MustCompile(`^  (\S+(?: \S+)*)(?:  +(\S.*))?$`)

// wordList makes the lists of a help text those of Markdown, of which cobra makes manual pages.
func wordList(text string) string {
	var out strings.Builder
	within := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		word := listed.FindStringSubmatch(line)
		more := within && strings.HasPrefix(line, "   ")
		if within && !more || word != nil {
			out.WriteString("\n\n")
		}
		switch within = word != nil || more; {
		case word != nil:
			fmt.Fprintf(&out, "%s\n: %s", word[1], word[2])
		case more:
			out.WriteString(" " + strings.TrimSpace(line))
		default:
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}
