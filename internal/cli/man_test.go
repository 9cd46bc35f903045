package cli

import "testing"

// TestWordList makes the lists of help lists of Markdown, and leaves all else.
func TestWordList(t *testing.T) {
	const help = `What it does:
  one word  is this,
            and that.
  two       is that.
A line of its own.

  three
    is the rest
` + "\nThe end."
	const want = `What it does:


one word
: is this, and that.

two
: is that.

A line of its own.



three
:  is the rest


The end.
`
	if got := wordList(help); got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
}
