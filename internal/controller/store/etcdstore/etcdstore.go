package etcdstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/guard"
)

const (
	prefix    = "/godwit/v1/"
	records   = prefix + "records/"
	leaderKey = prefix + "leader"
	// leaseSeconds bounds how long nobody leads after the leader was lost.
	leaseSeconds  = 3
	writeTimeout  = 10 * time.Second
	dialTimeout   = 5 * time.Second
	loadPageCount = 1000 // records in an answer: etcd's client takes 2 GiB, a person's patience less
)

// Store is a store in etcd.
type Store struct {
	client *clientv3.Client
	close  func() error
}

// Connect returns a store at the endpoints of an etcd that runs elsewhere.
func Connect(endpoints []string, security *tls.Config) (*Store, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: security, DialTimeout: dialTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(endpoints, ", "), err)
	}
	return &Store{client: client, close: client.Close}, nil
}

// Campaign implements store.Store. The revision in which the leader's key was made is the epoch: etcd's
// revisions only grow.
func (s *Store) Campaign(ctx context.Context, candidate string) (store.Term, error) {
	lease, err := s.client.Grant(ctx, leaseSeconds)
	if err != nil {
		return nil, fmt.Errorf("lease of the leader: %w", explain(err))
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	alive, err := s.client.KeepAlive(life, lease.ID)
	if err != nil {
		end()
		return nil, fmt.Errorf("lease of the leader: %w", explain(err))
	}
	t := &term{store: s, lease: lease.ID, lost: make(chan struct{}), end: end}
	guard.Go(func() error {
		t.watch(alive)
		return nil
	})
	for {
		epoch, err := s.tryToLead(ctx, candidate, lease.ID)
		if err != nil {
			return nil, errors.Join(explain(err), t.Resign(context.WithoutCancel(ctx)))
		}
		if epoch != 0 {
			t.epoch = epoch
			return t, nil
		}
		if err := s.awaitVacancy(ctx, t); err != nil {
			return nil, errors.Join(err, t.Resign(context.WithoutCancel(ctx)))
		}
	}
}

// tryToLead makes the leader's key unless there is one. 0: another candidate leads.
func (s *Store) tryToLead(ctx context.Context, candidate string, lease clientv3.LeaseID) (uint64, error) {
	answer, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(leaderKey), "=", 0)).
		Then(clientv3.OpPut(leaderKey, candidate, clientv3.WithLease(lease))).Commit()
	if err != nil || !answer.Succeeded {
		return 0, err
	}
	return uint64(answer.Header.Revision), nil
}

// awaitVacancy waits until nobody leads.
func (s *Store) awaitVacancy(ctx context.Context, t *term) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	now, err := s.client.Get(ctx, leaderKey)
	if err != nil {
		return explain(err)
	}
	if len(now.Kvs) == 0 {
		return nil
	}
	changes := s.client.Watch(ctx, leaderKey, clientv3.WithRev(now.Header.Revision+1))
	for {
		select {
		case <-t.lost:
			return errors.New("the candidate's lease has ended: etcd did not answer in time")
		case one, open := <-changes:
			if err := ctx.Err(); err != nil {
				return err
			}
			if !open || one.Err() != nil {
				return nil // look again
			}
			for _, event := range one.Events {
				if event.Type == clientv3.EventTypeDelete {
					return nil
				}
			}
		}
	}
}

// Load implements store.Store: all pages are of one revision.
func (s *Store) Load(ctx context.Context) ([]store.Record, error) {
	var all []store.Record
	options := []clientv3.OpOption{
		clientv3.WithRange(clientv3.GetPrefixRangeEnd(records)), clientv3.WithLimit(loadPageCount),
	}
	for from := records; ; {
		page, err := s.client.Get(ctx, from, options...)
		if err != nil {
			return nil, fmt.Errorf("read the controller's state: %w", explain(err))
		}
		for _, one := range page.Kvs {
			key, err := store.ParseKey(strings.TrimPrefix(string(one.Key), records))
			if err != nil {
				return nil, fmt.Errorf("read the controller's state: %w", err)
			}
			all = append(all, store.Record{Key: key, Value: one.Value})
		}
		if !page.More {
			return all, nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
		if len(options) == 2 {
			options = append(options, clientv3.WithRev(page.Header.Revision))
		}
	}
}

// Commit implements store.Store.
func (s *Store) Commit(ctx context.Context, of store.Term, changes ...store.Change) error {
	if err := store.Check(changes); err != nil {
		return err
	}
	t, ok := of.(*term)
	if !ok {
		return errors.New("a term of another store")
	}
	var all []clientv3.Op
	for _, one := range changes {
		if one.Value == nil {
			all = append(all, clientv3.OpDelete(records+one.Key.String()))
		} else {
			all = append(all, clientv3.OpPut(records+one.Key.String(), string(one.Value)))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	answer, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(leaderKey), "=", int64(t.epoch))).Then(all...).Commit()
	if err != nil {
		return fmt.Errorf("write the controller's state: %w", explain(err))
	}
	if !answer.Succeeded {
		return store.ErrNotLeader
	}
	return nil
}

// Close implements store.Store.
func (s *Store) Close() error { return s.close() }

// explain says what an operator can do about errors that do not say so.
func explain(err error) error {
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return fmt.Errorf("%w: etcd is full, so nothing was changed; find out what fills it, then run "+
			"`etcdctl defrag` and `etcdctl alarm disarm`", err)
	}
	return err
}

// term is the time for which a lease holds the leader's key.
type term struct {
	store *Store
	lease clientv3.LeaseID
	epoch uint64
	end   context.CancelFunc
	once  sync.Once
	lost  chan struct{}
}

// watch ends the term when etcd has not renewed the lease in time: etcd may let another candidate lead
// from then on.
func (t *term) watch(alive <-chan *clientv3.LeaseKeepAliveResponse) {
	timer := time.NewTimer(leaseSeconds * time.Second)
	defer timer.Stop()
	defer t.over()
	for {
		select {
		case <-timer.C:
			return
		case answer, open := <-alive:
			if !open {
				return
			}
			timer.Reset(time.Duration(answer.TTL) * time.Second)
		}
	}
}

func (t *term) over() {
	t.once.Do(func() { close(t.lost) })
	t.end()
}

// Epoch implements store.Term.
func (t *term) Epoch() uint64 { return t.epoch }

// Lost implements store.Term.
func (t *term) Lost() <-chan struct{} { return t.lost }

// Resign implements store.Term.
func (t *term) Resign(ctx context.Context) error {
	t.over()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if _, err := t.store.client.Revoke(ctx, t.lease); err != nil &&
		!errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("give up the leader's lease: %w", err)
	}
	return nil
}
