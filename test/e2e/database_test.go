package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/lab/workload"

	"github.com/godwit/godwit/internal/lab/labtest"
)

// again ends the container like a crash, and starts another one on its volumes: only data on disk remains.
func (c *container) again(image string, flags []string, command ...string) {
	c.t.Helper()
	must(c.t, c.node, "rm", "--force", c.name)
	run := append(append([]string{"run", "-d", "--name", c.name}, flags...), image)
	c.id = strings.TrimSpace(must(c.t, c.node, append(run, command...)...))
}

// TestRedisAppendOnly counts with a Redis that logs every command to disk, while it moves, even while it
// rewrites its log. The final log on disk is valid according to Redis' own tool, and contains every
// answered command.
func TestRedisAppendOnly(t *testing.T) {
	t.Parallel()
	flags := []string{"-v", "appended:/data"}
	command := []string{"redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save",
		"", "--appendonly", "yes"}
	loadLabImage(t, "redis")
	c := served(t, "redis", "appends", "6379", flags, command...)
	conn, err := world.lab.Dial(t.Context(), "client", "tcp", c.address()+":6379")
	if err != nil {
		t.Fatal(err)
	}
	counter := workload.NewRedisCounter(conn)
	if err := counter.Fill(8 << 20); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	counter.Start(ctx, 500)
	for range 2 {
		before := counter.Answers()
		c.eventually("answers", func() bool { return counter.Answers() > before+20 })
		c.migrateBy(preCopy)
		if out := c.exec("redis-cli", "bgrewriteaof"); out.code != 0 {
			t.Errorf("rewrite: %s%s", out.stdout, out.stderr)
		}
	}
	stop()
	counted, err := counter.Result(patience)
	if err != nil || counted.Errors+counted.Lost+counted.Doubled > 0 || !counted.SameConnection {
		t.Errorf("the client saw %+v, %v", counted, err)
	}
	c.again("redis", flags, "sleep", "1000")
	out := c.exec("redis-check-aof", "/data/appendonlydir/appendonly.aof.manifest")
	if out.code != 0 || !strings.Contains(out.stdout, "valid") {
		t.Errorf("redis-check-aof: exit code %d: %s%s", out.code, out.stdout, out.stderr)
	}
	c.again("redis", flags, command...)
	want := strconv.FormatInt(counted.Requests, 10) + "\n"
	var visits string
	if !labtest.Within(patience,
		func() bool { visits = c.exec("redis-cli", "get", "visits").stdout; return visits == want }) {
		t.Errorf("what was written down says %q, want %q", visits, want)
	}
}

// sqliteWriter inserts rows, each in a transaction, and prints the number of each when it is durable.
// Another process reads them meanwhile: both map the index of the write-ahead log, shared and writable.
const sqliteWriter = `
sqlite3 /data/db 'PRAGMA journal_mode=WAL; CREATE TABLE rows(n INTEGER PRIMARY KEY, content BLOB)' >/dev/null
echo ready
(while :; do echo 'SELECT count(*) FROM rows;'; sleep 0.01; done) | sqlite3 -cmd '.timeout 10000' /data/db >/dev/null &
n=0
while :; do
  n=$((n+1))
  echo "INSERT INTO rows VALUES($n, randomblob(2000)); SELECT $n;"
  sleep 0.002
done | sqlite3 -bail -cmd '.timeout 10000' /data/db`

// sqliteLocks counts the processes with the lock that marks the database as in use.
const sqliteLocks = `grep -l 'POSIX.* READ .* 128 128$' /proc/[0-9]*/fdinfo/* | cut -d/ -f3 | sort -u | wc -l`

// TestSQLite moves a database in WAL mode while it is written. It stays valid, and every acknowledged row
// is there. Other processes open it after each move: without the locks they would rebuild the index while
// others have it mapped. Each process opens the database once, so the change of its inode does not matter.
func TestSQLite(t *testing.T) {
	t.Parallel()
	flags := []string{"-v", "rows:/data"}
	loadLabImage(t, "sqlite")
	c := served(t, "sqlite", "rows", "", flags, "sh", "-c", sqliteWriter)
	acknowledged := func() int {
		out := c.logs().stdout
		lines := strings.Fields(out[:strings.LastIndexByte(out, '\n')+1])
		last := lines[len(lines)-1]
		if last == "ready" {
			return 0
		}
		n, err := strconv.Atoi(last)
		if err != nil {
			t.Fatalf("the writer says %q", last)
		}
		return n
	}
	for range 2 {
		before := acknowledged()
		c.eventually("rows", func() bool { return acknowledged() > before+20 })
		c.migrateBy(preCopy, "--new-inodes")
		if locks := c.exec("sh", "-c", sqliteLocks); locks.stdout != "2\n" {
			t.Errorf("after a move %q processes have their lock on the index: %s", locks.stdout, locks.stderr)
		}
		other := c.exec("sqlite3", "-cmd", ".timeout 10000", "/data/db",
			"CREATE TABLE IF NOT EXISTS others(n); INSERT INTO others VALUES(1); PRAGMA quick_check")
		if other.code != 0 || other.stdout != "ok\n" {
			t.Errorf("another that opens the database: exit code %d: %s%s", other.code, other.stdout,
				other.stderr)
		}
	}
	before := acknowledged()
	c.eventually("rows after the moves", func() bool { return acknowledged() > before+20 })
	last := acknowledged()
	c.again("sqlite", flags, "sleep", "1000")
	out := c.exec("sqlite3", "/data/db", fmt.Sprintf(
		"PRAGMA integrity_check; SELECT count(*) = max(n) FROM rows; SELECT count(*) FROM rows WHERE n <= "+
			"%d AND length(content) = 2000", last))
	if want := fmt.Sprintf("ok\n1\n%d\n", last); out.code != 0 || out.stdout != want {
		t.Errorf("%d rows were acknowledged, want %q: exit code %d: %s%s", last, want, out.code, out.stdout,
			out.stderr)
	}
}
