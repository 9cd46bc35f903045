// Beat reports in a file, again and again, that it runs. All nodes see the file, and each line has the next
// number of a counter in memory. So a program that runs twice writes a number twice, however briefly its
// second copy runs.
//
// With a third argument, a directory, it writes files there, and checks its earlier files.
package main

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	pages     = 512
	pageBytes = 4096
	pace      = 20 * time.Millisecond
	files     = 32 // number of files
	fileLines = 200
)

// beat is the state of a run of the program in memory, which moves with it.
type beat struct {
	run    string // a random name of this run of the program
	number uint64
	memory []byte
	log    string // the file of its lines
	files  string // the directory of its files; empty: it has none
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: beat LOG [DIRECTORY]")
		os.Exit(2)
	}
	name := make([]byte, 8)
	if _, err := rand.Read(name); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	b := beat{run: hex.EncodeToString(name), memory: make([]byte, pages*pageBytes), log: os.Args[1]}
	for page := range pages {
		b.memory[page*pageBytes] = mark(uint64(page))
	}
	if len(os.Args) > 2 {
		b.files = os.Args[2]
	}
	for {
		problem := b.check()
		if err := b.say(problem); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		b.number++
		time.Sleep(pace)
	}
}

// say appends a line. It opens the file for each line, so that the moved state does not contain the file.
func (b *beat) say(problem string) error {
	f, err := os.OpenFile(b.log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s %d %d %s\n", b.run, b.number, time.Now().UnixNano(), problem)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// check checks a page and a file, and replaces both; it returns an error as one word.
func (b *beat) check() string {
	at := b.number % pages * pageBytes
	if b.memory[at] != mark(b.number%pages) {
		return fmt.Sprintf("page-%d-is-wrong", at/pageBytes)
	}
	if b.files == "" {
		return "ok"
	}
	path := filepath.Join(b.files, fmt.Sprint(b.number%files))
	if b.number >= files {
		got, err := os.ReadFile(path)
		if err != nil {
			return "file-" + strings.ReplaceAll(err.Error(), " ", "-")
		}
		if string(got) != content(b.run, b.number-files) {
			return fmt.Sprintf("file-%d-is-wrong", b.number%files)
		}
	}
	if err := os.WriteFile(path, []byte(content(b.run, b.number)), 0o600); err != nil {
		return "file-" + strings.ReplaceAll(err.Error(), " ", "-")
	}
	return "ok"
}

func content(run string, number uint64) string {
	return strings.Repeat(fmt.Sprintf("%s %d\n", run, number), fileLines)
}

func mark(page uint64) byte { return byte(page%251 + 1) }
