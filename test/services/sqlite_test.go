package services

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// refusedSQLite is a server whose threads have separate connections to one database. After a move they
// would not see each other's locks, so it has to be refused: see docs/compatibility.md.
func refusedSQLite(name, journal string) service {
	s := sqlite(name, journal, "each")
	s.refused = "SQLite database /srv/rows.db"
	return s
}

// sharedSQLite has two processes, each with a single connection, and its user declares that.
func sharedSQLite() service {
	s := sqlite("sqlite-processes", "WAL", "one")
	s.migrate = []string{"--new-inodes"}
	return s
}

func sqlite(name, journal, connections string) service {
	return service{
		name: name, port: 80, packages: []string{"python3"},
		programs: map[string]program{"/srv/rows.py": source("rows.py")},
		command:  []string{"python3", "/srv/rows.py", journal, connections}, connect: counted("http"),
		lost: lostRows,
	}
}

// lostRows counts the missing rows of a session as seen by a process that opens the database now, and
// checks the database.
func lostRows(ctx context.Context, to address, number int, asked int64) (int64, error) {
	const script = `import sqlite3, sys
rows = sqlite3.connect("/srv/rows.db", timeout=60)
print(rows.execute("SELECT count(*) FROM rows WHERE path = ?", (sys.argv[1],)).fetchone()[0])
print(rows.execute("PRAGMA integrity_check").fetchone()[0])`
	out, err := to.exec(ctx, "python3", "-c", script, fmt.Sprintf("/%d", number))
	if err != nil {
		return 0, err
	}
	count, state, _ := strings.Cut(strings.TrimSpace(out), "\n")
	if state != "ok" {
		return 0, fmt.Errorf("the database is damaged: %s", state)
	}
	found, err := strconv.ParseInt(count, 10, 64)
	return max(0, asked-found), err
}
