package services

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
)

// rowsOf is the table of the clients' rows.
const rowsOf = "CREATE TABLE asked (number int, nth bigint, text varchar(100), PRIMARY KEY (number, nth))"

// row returns a row that a client inserts, and expects to read again.
func row(number int, nth int64) string {
	return fmt.Sprintf("session %d asks for the %dth time", number, nth)
}

// anyRow returns a pattern for the rows of a session.
func anyRow(number int) string { return fmt.Sprintf("session %d asks for the [0-9]*th time", number) }

// postgreSQL runs as its own user, and pgbench uses it beside the clients.
func postgreSQL() service {
	return service{
		name: "postgresql", port: 5432, user: "postgres",
		packages: []string{"postgresql", "postgresql-contrib"},
		setup: `
			install --directory --owner=postgres /run/postgresql
			cd /etc/postgresql/15/main
			sed -i '1i host all all all trust' pg_hba.conf
			echo "listen_addresses = '*'" >>postgresql.conf
			run() { setpriv --reuid=postgres --regid=postgres --init-groups "$@" >/dev/null; }
			bin=/usr/lib/postgresql/15/bin
			run $bin/pg_ctl start --wait --log=/dev/null -D /var/lib/postgresql/15/main -o "-c config_file=$PWD/postgresql.conf"
			run createdb bench
			run pgbench --initialize --scale=2 --quiet bench 2>/dev/null
			run psql --quiet bench --command="` + rowsOf + `"
			run $bin/pg_ctl stop --wait -D /var/lib/postgresql/15/main`,
		command: []string{
			"/usr/lib/postgresql/15/bin/postgres", "-D", "/var/lib/postgresql/15/main", "-c",
			"config_file=/etc/postgresql/15/main/postgresql.conf",
		},
		beside: func(host string) []string {
			return []string{"pgbench", "--host=" + host, "--username=postgres", "--no-vacuum", "--client=2",
				"--rate=50", "--time=86400", "bench"}
		},
		connect: func(ctx context.Context, to address, number int) (session, error) {
			conn, err := connectPostgres(ctx, to)
			return postgresSession{conn, number}, err
		},
		lost: func(ctx context.Context, to address, number int, asked int64) (int64, error) {
			conn, err := connectPostgres(ctx, to)
			if err != nil {
				return 0, err
			}
			defer conn.Close(context.WithoutCancel(ctx))
			var found int64
			var balanced bool
			err = conn.QueryRow(ctx, "SELECT count(*) FROM asked WHERE number = $1 AND nth <= $2", number,
				asked).Scan(&found)
			if err == nil {
				err = conn.QueryRow(ctx, `SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches)
					AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)`).Scan(&balanced)
			}
			if err == nil && !balanced {
				err = errors.New("the balances of pgbench do not add up")
			}
			return asked - found, err
		},
	}
}

func connectPostgres(ctx context.Context, to address) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig("postgres://postgres@" + to.hostPort + "/bench?sslmode=prefer")
	if err != nil {
		return nil, err
	}
	config.DialFunc = to.dial
	return pgx.ConnectConfig(ctx, config)
}

type postgresSession struct {
	conn   *pgx.Conn
	number int
}

func (s postgresSession) Ask(ctx context.Context, nth int64) error {
	_, err := s.conn.Exec(ctx, "INSERT INTO asked VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", s.number,
		nth, row(s.number, nth))
	if err != nil {
		return err
	}
	var text string
	err = s.conn.QueryRow(ctx, "SELECT text FROM asked WHERE number = $1 AND nth = $2", s.number,
		nth).Scan(&text)
	return is(err, text, row(s.number, nth))
}

func (s postgresSession) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return s.conn.Close(ctx)
}

// is checks an answer.
func is(err error, got, want string) error {
	if err == nil && got != want {
		return fmt.Errorf("the answer is %.200q, not %.200q", got, want)
	}
	return err
}

// mariaDB runs with Debian's configuration.
func mariaDB() service {
	return service{
		name: "mariadb", port: 3306, user: "mysql",
		packages: []string{"mariadb-server"},
		setup: `
			sed -i 's/^bind-address.*/bind-address = 0.0.0.0/' /etc/mysql/mariadb.conf.d/50-server.cnf
			install --directory --owner=mysql /run/mysqld
			printf "%s;\n" "CREATE DATABASE bench" "USE bench" "` + rowsOf + `" "FLUSH PRIVILEGES" \
				"CREATE USER client IDENTIFIED BY ''" "GRANT ALL ON bench.* TO client" |
				setpriv --reuid=mysql --regid=mysql --init-groups mariadbd --bootstrap`,
		command: []string{"mariadbd"},
		connect: func(ctx context.Context, to address, number int) (session, error) {
			db, err := connectMySQL(ctx, to)
			return mysqlSession{db, number}, err
		},
		lost: func(ctx context.Context, to address, number int, asked int64) (found int64, err error) {
			db, err := connectMySQL(ctx, to)
			if err != nil {
				return 0, err
			}
			defer db.Close()
			err = db.QueryRowContext(ctx, "SELECT count(*) FROM asked WHERE number = ? AND nth <= ?",
				number, asked).Scan(&found)
			return asked - found, err
		},
	}
}

// connectMySQL opens one connection, which the library must not replace silently.
func connectMySQL(ctx context.Context, to address) (*sql.DB, error) {
	config := mysql.NewConfig()
	config.User, config.Addr, config.DBName = "client", to.hostPort, "bench"
	config.DialFunc = to.dial
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	conn, err := connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(&once{Connector: connector, conn: conn})
	db.SetMaxOpenConns(1)
	return db, nil
}

type mysqlSession struct {
	db     *sql.DB
	number int
}

func (s mysqlSession) Ask(ctx context.Context, nth int64) error {
	_, err := s.db.ExecContext(ctx, "INSERT IGNORE INTO asked VALUES (?, ?, ?)", s.number, nth,
		row(s.number, nth))
	if err != nil {
		return err
	}
	var text string
	err = s.db.QueryRowContext(ctx, "SELECT text FROM asked WHERE number = ? AND nth = ?", s.number,
		nth).Scan(&text)
	return is(err, text, row(s.number, nth))
}

func (s mysqlSession) Close() error { return s.db.Close() }

// memcached keeps values in memory.
func memcached() service {
	return service{
		name: "memcached", port: 11211, packages: []string{"memcached"},
		command: []string{"memcached", "-u", "memcache", "-m", "256"},
		connect: func(ctx context.Context, to address, number int) (session, error) {
			return connectMemcache(ctx, to, number)
		},
		lost: func(ctx context.Context, to address, number int, asked int64) (lost int64, err error) {
			c, err := connectMemcache(ctx, to, number)
			if err != nil {
				return 0, err
			}
			defer c.Close()
			for nth := int64(1); nth <= asked; nth++ {
				item, err := c.Get(key(number, nth))
				switch {
				case errors.Is(err, memcache.ErrCacheMiss):
					lost++
				case err != nil:
					return lost, err
				case string(item.Value) != row(number, nth):
					lost++
				}
			}
			return lost, nil
		},
	}
}

func connectMemcache(ctx context.Context, to address, number int) (memcacheSession, error) {
	conn, err := to.Dial(ctx)
	if err != nil {
		return memcacheSession{}, err
	}
	c := memcache.New(to.hostPort)
	c.Timeout = askTimeout
	c.DialContext = onlyConn(conn)
	return memcacheSession{c, conn, number}, nil
}

func key(number int, nth int64) string { return fmt.Sprintf("%d-%d", number, nth) }

type memcacheSession struct {
	*memcache.Client
	conn   net.Conn
	number int
}

func (s memcacheSession) Ask(_ context.Context, nth int64) error {
	text := row(s.number, nth)
	if err := s.Set(&memcache.Item{Key: key(s.number, nth), Value: []byte(text)}); err != nil {
		return err
	}
	item, err := s.Get(key(s.number, nth))
	if err != nil {
		return err
	}
	return is(nil, string(item.Value), text)
}

func (s memcacheSession) Close() error { return s.conn.Close() }
