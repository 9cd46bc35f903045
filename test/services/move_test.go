package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/migration"
)

// patience bounds all waits: services start slowly on a busy machine, and their memory follows slowly.
const patience = 5 * time.Minute

// chosen returns the environment's selection of a list, or all of it.
func chosen(t *testing.T, variable string, all ...string) []string {
	t.Helper()
	wanted := strings.FieldsFunc(os.Getenv(variable), func(r rune) bool { return r == ' ' || r == ',' })
	for _, one := range wanted {
		if !slices.Contains(all, one) {
			t.Fatalf("%s: there is no %q; there are %s", variable, one, strings.Join(all, ", "))
		}
	}
	if len(wanted) == 0 {
		return all
	}
	return wanted
}

// TestServices moves the services there and back.
func TestServices(t *testing.T) {
	pattern, err := regexp.Compile(os.Getenv("SERVICES"))
	if err != nil {
		t.Fatal(err)
	}
	modes := chosen(t, "MODES", string(migration.Cold), string(migration.PreCopy),
		string(migration.PostCopy), string(migration.Hybrid))
	over := chosen(t, "LINKS", world.links()...)
	engines, names := engines(), []string{"embedded"}
	if os.Getenv("SERVICES_ENGINES") != "" {
		names = chosen(t, "SERVICES_ENGINES", "embedded", "docker")
	}
	results := results{}
	defer func() { t.Logf("\n%s", results.table()) }()
	for _, s := range services() {
		if !pattern.MatchString(s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			image, err := makeImage(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				t.Run(name, func(t *testing.T) {
					r := &running{service: s, engine: engines[name], image: image}
					t.Cleanup(func() { r.remove(t) })
					if err := r.load(t.Context()); err != nil {
						results.add(t, failed(t, s, name, err))
						return
					}
					for _, link := range over {
						for _, mode := range modes {
							t.Run(link+"/"+mode, func(t *testing.T) {
								results.add(t, r.thereAndBack(t, link,
									mode))
							})
						}
					}
				})
			}
		})
	}
}

// running is a service's container, with its client.
type running struct {
	service service
	engine  engine
	image   image
	at      string
	client  *client
	beside  *companion
}

// load loads the image on the nodes, and starts the service.
func (r *running) load(ctx context.Context) error {
	var loading sync.WaitGroup
	loaded := make([]error, len(between()))
	for i, node := range between() {
		loading.Go(func() { loaded[i] = r.engine.load(ctx, node, r.image) })
	}
	loading.Wait()
	if err := errors.Join(loaded...); err != nil {
		return err
	}
	return r.start(ctx)
}

// failed is the result of a service that does not start.
func failed(t *testing.T, s service, engine string, err error) result {
	t.Helper()
	row := result{Name: s.name, Engine: engine, Failed: 1}
	row.note(t, "%v", err)
	return row
}

// between returns the nodes between which services move.
func between() []string { return []string{"a", "b"} }

func other(node string) string {
	if node == "a" {
		return "b"
	}
	return "a"
}

// start starts the container at a, waits for it, and starts a client.
func (r *running) start(ctx context.Context) error {
	r.at = "a"
	if err := r.engine.run(ctx, r.at, r.service, r.image); err != nil {
		return err
	}
	host, err := r.engine.address(ctx, r.at, r.service.name)
	if err != nil {
		return err
	}
	to := r.reached(host)
	var last error
	if !labtest.Within(limit(patience), func() bool { last = r.tried(ctx, to); return last == nil }) {
		logs, _ := r.engine.logs(ctx, r.at, r.service.name)
		return fmt.Errorf("%s does not begin to answer: %w; it says: %s", r.service.name, last, lastOf(logs))
	}
	if r.service.beside != nil {
		if r.beside, last = startCompanion(context.WithoutCancel(ctx), r.image,
			r.service.beside(host)); last != nil {
			return last
		}
	}
	r.client = start(context.WithoutCancel(ctx), r.service, to)
	return r.client.answered(ctx)
}

// reached returns the address at which clients reach the service on a host.
func (r *running) reached(host string) address {
	to := address{
		network: "tcp", hostPort: fmt.Sprintf("%s:%d", host, r.service.port),
		dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return world.Dial(ctx, clientMachine, network, address)
		},
		exec: func(ctx context.Context, command ...string) (string, error) {
			return r.engine.exec(ctx, r.at, r.service.name, command...)
		},
		program: func(ctx context.Context, command ...string) (*exec.Cmd, error) {
			return programOf(ctx, r.image, command...)
		},
	}
	if r.service.udp {
		to.network = "udp"
	}
	return to
}

// tried connects once.
func (r *running) tried(ctx context.Context, to address) error {
	ctx, cancel := context.WithTimeout(ctx, limit(10*time.Second))
	defer cancel()
	s, err := r.service.connect(ctx, to, probe)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Ask(ctx, 1)
}

// probe is the number of a session that checks whether the service answers.
const probe = 0

// thereAndBack moves the service to the other node and back in a mode, and returns the client's results.
func (r *running) thereAndBack(t *testing.T, link, mode string) (row result) {
	row = result{Name: r.service.name, Engine: r.engine.name(), Mode: mode, Link: link}
	if err := world.setLink(link); err != nil {
		t.Fatal(err)
	}
	if r.client == nil { // the previous one was lost
		if err := r.load(t.Context()); err != nil {
			row.Failed++
			row.note(t, "%v", err)
			return row
		}
	}
	for range 2 {
		began := time.Now()
		report, err := r.move(t, mode)
		if r.service.refused != "" {
			r.wantRefused(t, &row, report, err)
			continue
		}
		row.Moves++
		if err != nil {
			row.Failed++
			row.note(t, "move from %s: %v", r.at, err)
			if r.client.answered(t.Context()) != nil { // it runs nowhere, and the next mode starts a new one
				r.account(t, &row)
				r.remove(t)
				return row
			}
			continue
		}
		if err := r.client.answered(t.Context()); err != nil {
			row.note(t, "after a move to %s: %v", r.at, err)
		}
		row.Gap = max(row.Gap, r.client.gap(began).Seconds())
		row.Downtime = max(row.Downtime, report.DowntimeSeconds)
	}
	r.account(t, &row)
	return row
}

// account adds the client's errors, and lost acknowledgements.
func (r *running) account(t *testing.T, row *result) {
	t.Helper()
	for _, err := range r.client.takeErrors() {
		row.Errors++
		row.note(t, "%v", err)
	}
	if err := r.beside.err(); err != nil {
		row.Errors++
		row.note(t, "%v", err)
	}
	lost, err := r.client.newlyLost(t.Context())
	if err != nil {
		row.Errors++
		row.note(t, "%v", err)
	}
	if row.Lost = lost; lost > 0 {
		row.note(t, "%d of what was acknowledged are lost", lost)
	}
	if row.Errors >= maxErrors { // the client has given up, and the next mode starts a new one
		r.remove(t)
	}
}

// wantRefused checks that a service that may not move was refused with the right words, and continues.
func (r *running) wantRefused(t *testing.T, row *result, report migration.Report, err error) {
	t.Helper()
	row.Refused++
	if report.Result != migration.Refused || err == nil || !strings.Contains(err.Error(), r.service.refused) {
		row.Failed++
		row.note(t, "want a refusal that names %q, got %s: %v", r.service.refused, report.Result, err)
	}
	if err := r.client.answered(t.Context()); err != nil {
		row.note(t, "after a refusal: %v", err)
	}
}

// move moves the container to the other node, and waits until everything is there.
func (r *running) move(t *testing.T, mode string) (report migration.Report, err error) {
	t.Helper()
	if err := r.client.answered(t.Context()); err != nil {
		return report, err
	}
	flags := append([]string{"--mode", mode, "--json", "--wait"}, r.service.migrate...)
	if mode == string(migration.Hybrid) { // nothing fits, so memory follows
		flags = append(flags, "--downtime-target", "1ms", "--max-rounds", "2")
	}
	to := other(r.at)
	out, err := world.Exec(t.Context(), r.at, append([]string{"godwit", "migrate",
		r.engine.prefix() + r.service.name, to}, flags...)...)
	if jsonErr := json.Unmarshal([]byte(out), &report); jsonErr != nil && err == nil {
		err = jsonErr
	}
	if err != nil {
		return report, err
	}
	if report.Result != migration.Moved {
		return report, fmt.Errorf("it is %s: %v", report.Result, report.Problems)
	}
	r.at = to
	err = errors.New("its memory does not follow")
	filled := labtest.Within(limit(patience), func() bool {
		var now migration.Report
		out, err = world.Exec(t.Context(), to, "godwit", "migration", "show", report.Migration, "--json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &now)
		}
		return err == nil && (now.Push == nil || now.Push.LeftPages == 0)
	})
	if filled {
		return report, nil
	}
	return report, err
}

// remove ends the client, and removes the container from any node.
func (r *running) remove(t *testing.T) {
	t.Helper()
	if r.client != nil {
		r.client.stop()
		r.beside.stop()
		r.client, r.beside = nil, nil
	}
	ctx := context.WithoutCancel(t.Context())
	for _, node := range between() {
		if err := r.engine.remove(ctx, node, r.service.name, r.image); err != nil {
			t.Errorf("remove it from %s: %v", node, err)
		}
	}
}
