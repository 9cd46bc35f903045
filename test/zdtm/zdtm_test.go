package zdtm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab/labtest"
)

// patience is how long one step may take: a move, a check of the state.
const patience = 3 * time.Minute

// startPatience is how long a program may take to set up its state. Some wait for ever for an operation
// that a container forbids, such as a mount.
const startPatience = 40 * time.Second

// program is one of the suite's.
type program struct {
	name      string // static/pipe00
	arguments []string
}

func (p program) directory() string { return "/zdtm/" + filepath.Dir(p.name) }

// start returns the command of a container, finish the command that makes the program check its state.
func (p program) start() []string {
	return append([]string{"/init", "start", p.directory(), "./" + filepath.Base(p.name)}, p.arguments...)
}

func (p program) finish() []string {
	return []string{"/init", "finish", "/zdtm/" + p.name + ".pid", "/zdtm/" + p.name + ".out"}
}

// TestZdtm moves each program of the suite in each way. These say what is done:
//
//	ZDTM_SUITE    what scripts/fetch-zdtm.sh has made; without it nothing is tried
//	ZDTM          a regular expression of the programs that are tried
//	ZDTM_WAYS     the ways that are tried, all if it is empty
//	ZDTM_JSON     where the outcome goes; beside it, with the end .md, the table for the documentation
//	ZDTM_RESUME   go on where the run ended whose outcome is there
func TestZdtm(t *testing.T) {
	if world.suite == "" {
		return // only part of make zdtm: it takes hours
	}
	found, err := readResults(os.Getenv("ZDTM_JSON"), os.Getenv("ZDTM_RESUME") != "")
	if err != nil {
		t.Fatal(err)
	}
	chosen := waysAsked(t)
	beside, err := newPeer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { report(t, found) })
	t.Cleanup(func() {
		if err := beside.remove(); err != nil {
			t.Error(err)
		}
	})
	for _, p := range programs(t) {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			before := found.of(p.name)
			left := slices.DeleteFunc(slices.Clone(chosen),
				func(w way) bool { _, done := before[w]; return done })
			now, err := tryAll(t.Context(), beside, p, left)
			if err == nil {
				_, err = world.lab.PID("a") // without a lab, no result is valid
			}
			if err == nil {
				err = found.add(now...)
			}
			if err != nil {
				t.Fatal(err)
			}
			judge(t, p.name, found.of(p.name))
		})
	}
}

// otherwise explains why programs may do worse than with plain runc: a file that moves to another node has
// another device and inode there, as docs/compatibility.md explains. They are counted, and do not fail the
// test.
var otherwise = map[string]string{
	"static/file_locks01": "it compares the device and inode of a locked file with those before the " +
		"move; the lock is right",
	"static/unlink_fstat03": "it compares the device and inode of an open file with those before the move",
}

// judge fails the test of a program that does worse here than with plain runc.
func judge(t *testing.T, name string, all map[way]one) {
	t.Helper()
	why := otherwise[name]
	for w, c := range all {
		switch {
		case w != runc && isWorse(c.Result) && all[runc].Result == passed && why == "":
			t.Errorf("%s: %s, with runc it passes: %s", w, c.Result, c.Why)
		case c.Result != passed:
			t.Logf("%s: %s: %s", w, c.Result, c.Why)
		}
	}
}

func report(t *testing.T, found *results) {
	d := summarise(found.cases)
	t.Logf("\n%s", table(d))
	if found.path != "" {
		path := strings.TrimSuffix(found.path, ".json") + ".md"
		if err := os.WriteFile(path, []byte(table(d)), 0o644); err != nil {
			t.Error(err)
		}
	}
}

func waysAsked(t *testing.T) []way {
	t.Helper()
	var chosen []way
	for name := range strings.FieldsSeq(strings.ReplaceAll(os.Getenv("ZDTM_WAYS"), ",", " ")) {
		if !slices.Contains(allWays(), way(name)) {
			t.Fatalf("ZDTM_WAYS: no such way: %s; there are %v", name, allWays())
		}
		chosen = append(chosen, way(name))
	}
	if chosen == nil {
		return allWays()
	}
	return chosen
}

// programs returns the selected programs of the suite.
func programs(t *testing.T) []program {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(world.suite, "tests"))
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := regexp.Compile(os.Getenv("ZDTM"))
	if err != nil {
		t.Fatalf("ZDTM: %v", err)
	}
	var all []program
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) > 0 && wanted.MatchString(fields[0]) {
			all = append(all, program{fields[0], fields[1:]})
		}
	}
	if len(all) == 0 {
		t.Fatalf("ZDTM: no program matches %s", wanted)
	}
	return all
}

// tryAll tries a program in several ways. One container moves in all modes, one after the other, which is
// faster: if the program is right afterwards, it was right after each move. Obstacles to a move are the
// same in all modes. Otherwise each mode is tried separately.
func tryAll(ctx context.Context, beside *peer, p program, ways []way) ([]one, error) {
	var all []one
	modes := slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return w == runc })
	if len(modes) < len(ways) {
		result, why, err := beside.try(ctx, p)
		if err != nil {
			return nil, err
		}
		all = append(all, one{p.name, runc, result, why})
		if result == unfit {
			for _, w := range modes {
				all = append(all, one{p.name, w, unfit, why})
			}
			return all, nil
		}
	}
	if len(modes) == 0 {
		return all, nil
	}
	together, err := move(ctx, p, modes...)
	for _, w := range modes {
		m := together
		if err == nil && len(modes) > 1 && m.result != passed && m.moves > 0 {
			m, err = move(ctx, p, w)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, one{p.name, w, m.result, m.why})
	}
	return all, nil
}

// moved is the result of a program in a container that moves.
type moved struct {
	result outcome
	why    string
	moves  int // attempted moves that were not refused
}

// move runs a program in a container of Godwit that moves in some modes, one after the other.
func move(ctx context.Context, p program, modes ...way) (moved, error) {
	c := container{name: strings.NewReplacer("/", "-", "+", "-plus", "_", "-").Replace(p.name) +
		"-" + string(modes[0]), node: "a"}
	defer c.remove()
	if out, err := c.godwit(ctx, append([]string{"run", "-d", "--name", c.name, image},
		p.start()...)...); err != nil {
		return moved{}, errors.New(errorText(err, out))
	}
	if why, err := c.awaitStart(ctx); why != "" || err != nil {
		return moved{result: unfit, why: why}, err
	}
	for i, mode := range modes {
		result, why := c.migrate(ctx, mode)
		switch result {
		case passed:
			continue
		case refused:
			return moved{result, why, i}, nil
		case rolledBack:
			if is, wrong := c.look(ctx, p); is != passed {
				return moved{failed, why + "; and then where it was: " + wrong, i + 1}, nil
			}
		}
		return moved{result, why, i + 1}, nil
	}
	result, why := c.look(ctx, p)
	return moved{result, why, len(modes)}, nil
}

// container is one of Godwit's.
type container struct {
	name, node string
}

func (c *container) godwit(ctx context.Context, args ...string) (string, error) {
	return execute(ctx, c.node, append([]string{"godwit"}, args...)...)
}

// execute runs a command in a node, and returns its output on both streams.
func execute(ctx context.Context, node string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd, err := world.lab.Command(ctx, node, args...)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

// errorText is short, because the result of each program is saved.
func errorText(err error, out string) string {
	out = strings.TrimSpace(out)
	const longest = 600
	if len(out) > longest {
		out = out[:longest/2] + " ... " + out[len(out)-longest/2:]
	}
	return err.Error() + ": " + out
}

// awaitStart waits until the program has set up its state; it returns the reason of a failure.
func (c *container) awaitStart(ctx context.Context) (why string, err error) {
	var out string
	labtest.Within(startPatience, func() bool {
		out, err = c.godwit(ctx, "logs", c.name)
		return err != nil || strings.Contains(out, "started")
	})
	if err != nil {
		return "", errors.New(errorText(err, out))
	}
	if strings.HasPrefix(lastLine(out), "started") {
		return "", nil
	}
	return "it does not start: " + strings.TrimSpace(out), nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// migrate moves the container to the other node.
func (c *container) migrate(ctx context.Context, mode way) (outcome, string) {
	to := map[string]string{"a": "b", "b": "a"}[c.node]
	args := []string{"migrate", c.name, to, "--mode", string(mode), "--json", "--wait"}
	if mode == hybrid { // so that memory follows
		args = append(args, "--downtime-target", "1ms", "--max-rounds", "2")
	}
	out, err := c.godwit(ctx, args...)
	var report struct {
		Result string  `json:"result"`
		Error  *string `json:"error"`
	}
	if begin := strings.Index(out, "{"); begin >= 0 {
		_ = json.NewDecoder(strings.NewReader(out[begin:])).Decode(&report) // no report: see below
	}
	why := ""
	if report.Error != nil {
		why = *report.Error
	}
	switch report.Result {
	case "moved":
		c.node = to
		return passed, ""
	case "refused":
		return refused, why
	case "rolled-back":
		return rolledBack, why
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 && strings.Contains(out, "nothing was changed") {
		return refused, errorText(err, out)
	}
	return lost, report.Result + " " + out
}

// look makes the program check its state.
func (c *container) look(ctx context.Context, p program) (outcome, string) {
	out, err := c.godwit(ctx, append([]string{"exec", c.name}, p.finish()...)...)
	return verdict(out, err)
}

// verdict parses a program's last line: PASS, or the error.
func verdict(out string, err error) (outcome, string) {
	if err != nil {
		return failed, errorText(err, out)
	}
	if slices.Contains(strings.Fields(lastLine(out)), "PASS") {
		return passed, ""
	}
	return failed, errorText(errors.New("it says"), out)
}

// remove removes the container from the node that has it.
func (c *container) remove() {
	for _, node := range []string{c.node, map[string]string{"a": "b", "b": "a"}[c.node]} {
		if _, err := execute(context.Background(), node, "godwit", "rm", "--force", c.name); err == nil {
			return
		}
	}
}
