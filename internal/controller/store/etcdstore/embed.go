// Package etcdstore is the controller's store in etcd: in this process, or at endpoints that somebody
// else runs. It must not know what the records mean.
package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

const (
	memberName = "godwit-controller"
	// quotaBytes bounds the database: 40,000 records take some 60 MB.
	quotaBytes = 1 << 30
	// keptRevisions is how many old revisions stay. Nobody reads them.
	keptRevisions = "1000"
	startTimeout  = time.Minute
)

// Embedded is an etcd in this process, alone in its cluster. It listens nowhere: its only client is this
// process.
type Embedded struct {
	server *embed.Etcd
	client *clientv3.Client
}

// StartEmbedded starts etcd with its data below a directory, which only root should be able to read: the
// data contain the controller's private key. Only one process can use a directory at a time.
func StartEmbedded(ctx context.Context, directory string) (*Embedded, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("directory of the controller: %w", err)
	}
	config := embed.NewConfig()
	config.Name, config.Dir = memberName, filepath.Join(directory, "etcd")
	config.ListenClientUrls, config.AdvertiseClientUrls = nil, nil
	config.ListenPeerUrls = nil
	config.InitialCluster = config.InitialClusterFromName(memberName)
	config.LogLevel, config.LogOutputs = "error", []string{"stderr"}
	config.QuotaBackendBytes = quotaBytes
	config.AutoCompactionMode, config.AutoCompactionRetention = "revision", keptRevisions
	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", config.Dir, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-server.Server.ReadyNotify():
		client := v3client.New(server.Server)
		// Only this process uses the data: whoever led before is gone.
		if _, err = client.Delete(ctx, leaderKey); err == nil {
			return &Embedded{server: server, client: client}, nil
		}
	case err = <-server.Err():
	case <-ctx.Done():
		err = ctx.Err()
	}
	server.Close()
	return nil, fmt.Errorf("start etcd in %s: %w", config.Dir, err)
}

// Store returns a store in this etcd.
func (e *Embedded) Store() *Store {
	return &Store{client: e.client, close: func() error { return nil }}
}

// Close ends etcd.
func (e *Embedded) Close() error {
	err := e.client.Close()
	e.server.Close()
	if errors.Is(err, context.Canceled) { // Close cancels the client's own context, and reports that
		err = nil
	}
	return err
}
