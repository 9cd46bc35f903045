package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/migration"
)

// sqliteShell runs SQLite's own shell as the container's main program. It opens $DATABASE, and others on
// command: its commands come from a named pipe.
const sqliteShell = `
mkfifo /commands
sqlite3 "$DATABASE" "PRAGMA journal_mode=$JOURNAL; CREATE TABLE rows(n); INSERT INTO rows VALUES(1)"
(echo "SELECT 'ready' FROM rows;"; cat 0<>/commands) | sqlite3 $FLAGS "$DATABASE"`

// openDatabase starts a container in which a process has an SQLite database open and is idle.
func openDatabase(t *testing.T, name, database, journal string, flags ...string) *container {
	t.Helper()
	flags = append(flags, "--env", "DATABASE="+database, "--env", "JOURNAL="+journal)
	return served(t, "sqlite", name, "", flags, "sh", "-c", sqliteShell)
}

// tell sends a line to SQLite's shell.
func (c *container) tell(line string) {
	c.t.Helper()
	if out := c.exec("sh", "-c", `echo "$1" >/commands`, "sh", line); out.code != 0 {
		c.t.Fatalf("%s: %s", line, out.stderr)
	}
}

// says waits for a line of the shell's output.
func (c *container) says(text string) {
	c.t.Helper()
	c.eventually("the shell to say "+text, func() bool {
		out := c.logs()
		return strings.Contains(out.stdout+out.stderr, text)
	})
}

// wholeDatabase checks that the database is complete.
func (c *container) wholeDatabase(path string) {
	c.t.Helper()
	out := c.exec("sqlite3", path, "PRAGMA integrity_check; SELECT n FROM rows WHERE n = 1")
	if out.code != 0 || out.stdout != "ok\n1\n" {
		c.t.Errorf("on %s: exit code %d: %q %s", c.node, out.code, out.stdout, out.stderr)
	}
}

// TestOpenDatabase has a process with an open SQLite database, which gets another inode in any move. So the
// move is refused, unless a user knows better: in WAL mode the connection continues, and with a journal it
// can still read.
func TestOpenDatabase(t *testing.T) {
	loadLabImage(t, "sqlite")
	for name, one := range map[string]struct {
		database, journal, mode, says string
		flags                         []string
	}{
		"log-on-volume":    {"/data/db", "wal", preCopy, "in|2", []string{"-v", "logged:/data"}},
		"journal-in-layer": {"/db", "delete", cold, "readonly database", nil},
		"read-in-memory":   {"/dev/shm/db", "delete", postCopy, "in|1", []string{"--env", "FLAGS=-readonly"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := openDatabase(t, name, one.database, one.journal, one.flags...)
			words := []string{
				"(sqlite3), descriptor", "SQLite database " + one.database, "inode",
				"--new-inodes", "--mode restart",
			}
			c.refused(words...)
			for _, args := range [][]string{
				{"plan"},
				{"migrate", "--dry-run", "--mode", cold},
				{"migrate", "--dry-run", "--mode", preCopy},
				{"migrate", "--dry-run", "--mode", postCopy},
				{"migrate", "--dry-run", "--mode", hybrid},
			} {
				args = append(args, c.name, c.other())
				out, err := godwit(t.Context(), c.node, args...)
				lacks := func(word string) bool { return !strings.Contains(out.stdout+out.stderr, word) }
				if err != nil || out.code != 1 || slices.ContainsFunc(words, lacks) {
					t.Errorf("%v: %v, exit code %d: %s%s", args, err, out.code, out.stdout, out.stderr)
				}
			}
			for _, way := range [][]string{{"--mode", restart}, {"--new-inodes"}} {
				must(t, c.node, append([]string{"migrate", c.name, c.other(), "--dry-run"}, way...)...)
			}
			c.migrateBy(one.mode, "--new-inodes")
			c.tell("INSERT INTO rows VALUES(2);")
			c.tell("SELECT 'in', count(*) FROM rows;")
			c.says(one.says)
			c.wholeDatabase(one.database)
			c.refused(words...)
		})
	}
	t.Run("opened meanwhile", openedMeanwhile)
	t.Run("shared", databaseShared)
}

// openedMeanwhile opens a database while the memory is being copied: the move is refused before the freeze.
func openedMeanwhile(t *testing.T) {
	const command = `
memory=$(head -c 20000000 /dev/urandom | base64)
echo ready
until test -e /data/go; do sleep 0.05; done
sqlite3 /data/db 'CREATE TABLE rows(n); INSERT INTO rows VALUES(1)'
sleep 100000 | sqlite3 /data/db`
	c := served(t, "sqlite", "opened-meanwhile", "", []string{"-v", "meanwhile:/data"}, "sh", "-c", command)
	id := c.depart("--mode", preCopy, "--bandwidth-limit", "20mbit")
	show := func() (r migration.Report) {
		if err := json.Unmarshal([]byte(must(t, "a", "migration", "show", "--json", id)), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	c.eventually("rounds", func() bool {
		return slices.ContainsFunc(show().Phases, func(p migration.Phase) bool { return p.Name == "stage" })
	})
	root, _, err := place("a")
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "var/lib/godwit/volumes/meanwhile/go"), nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	var r migration.Report
	c.eventually("end of the migration", func() bool {
		r = show()
		return r.Result != migration.ResultRuns
	})
	named := slices.ContainsFunc(r.Problems, func(p migration.Problem) bool {
		return strings.Contains(p.What, "(sqlite3), descriptor") &&
			strings.HasSuffix(p.What, "SQLite database /data/db")
	})
	if !named || len(r.Rounds) == 0 || r.DowntimeSeconds > 0 {
		t.Errorf("it ended as %+v", r)
	}
	c.wholeDatabase("/data/db")
}

// databaseShared has a database whose inode is the same on both nodes, so it is not refused. The process
// notices that another connection of its own has the lock, even if it opens that after the move.
func databaseShared(t *testing.T) {
	directory, err := os.MkdirTemp(labtest.Directory, "godwit-e2e-inodes-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	c := openDatabase(t, "database-shared", "/data/db", "delete", "-v", directory+":/data")
	if v := c.moves()["/data"]; v.Way != migration.VolumeShared {
		t.Errorf("what became of the volume: %+v", v)
	}
	for _, line := range []string{"BEGIN IMMEDIATE;", ".connection 1", ".open /data/db", "BEGIN IMMEDIATE;"} {
		c.tell(line)
	}
	c.says("database is locked")
}
