package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/controller"
	"github.com/godwit/godwit/internal/controller/executor"
	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/controller/store/etcdstore"
	"github.com/godwit/godwit/internal/units"
	"github.com/godwit/godwit/internal/uplink"
)

// maxAtOnce bounds --in-per-node and --out-per-node: agents take no more from one node.
const maxAtOnce = 32

// runOptions are the values of the flags of run.
type runOptions struct {
	data, listen, name string
	endpoints          []string
	ca, cert, key      string
	limits             executor.Limits
	link               cli.Parsed[int64]
	enforce            bool
}

func newRunCommand() *cobra.Command {
	o := runOptions{
		limits: executor.DefaultLimits(),
		link:   cli.Parsed[int64]{Kind: "rate", Parse: units.ParseBandwidth},
	}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the controller",
		Long: `Run leads the cluster as soon as no other controller does. Only the leader listens. Several
controllers with the same --etcd-endpoints can stand by for each other: nodes and users name all of them.

Without --etcd-endpoints, the state is in an etcd within this process, below --data. It contains the
controller's private key: keep the directory secret, and back it up.`,
		Example: "  godwit-controller run\n" +
			"  godwit-controller run --link-limit 800mbit --out-per-node 1\n" +
			"  godwit-controller run --etcd-endpoints https://192.0.2.1:2379,https://192.0.2.2:2379 " +
			"--etcd-ca ca.pem",
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.data, "data", "/var/lib/godwit-controller",
		"directory for the state, and for the log of what users did")
	flags.StringVar(&o.listen, "listen", ":"+strconv.Itoa(uplink.DefaultPort),
		"TCP address to listen on, for agents and users")
	flags.StringVar(&o.name, "name", "", "name of this controller among several (default: the host name)")
	flags.StringSliceVar(&o.endpoints, "etcd-endpoints", nil, "URLs of an etcd to use instead of the own one")
	flags.StringVar(&o.ca, "etcd-ca", "", "file with the certificate that signs etcd's")
	flags.StringVar(&o.cert, "etcd-cert", "", "file with the certificate to show to etcd")
	flags.StringVar(&o.key, "etcd-key", "", "file with its key")
	flags.IntVar(&o.limits.InPerNode, "in-per-node", o.limits.InPerNode,
		"how many migrations to one node are under way at once")
	flags.IntVar(&o.limits.OutPerNode, "out-per-node", o.limits.OutPerNode,
		"how many migrations from one node are under way at once")
	flags.Var(&o.link, "link-limit",
		"bandwidth that migrations from one node to another may use; they then go one after the other "+
			"(default: no limit)")
	flags.BoolVar(&o.enforce, "enforce-labels", false,
		"move containers where their labels want them (default: only recommend it)")
	return cmd
}

func (o *runOptions) run(cmd *cobra.Command) (err error) {
	if o.limits.InPerNode < 1 || o.limits.OutPerNode < 1 || o.limits.InPerNode > maxAtOnce ||
		o.limits.OutPerNode > maxAtOnce {
		return cli.Usage(fmt.Errorf("--in-per-node and --out-per-node: must be from 1 to %d", maxAtOnce))
	}
	o.limits.LinkBitsPerSecond = float64(o.link.Value)
	if o.name == "" {
		if o.name, err = os.Hostname(); err != nil {
			return fmt.Errorf("find the host name: %w; give --name", err)
		}
	}
	runDir, err := cmd.Flags().GetString("run")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.data, 0o700); err != nil {
		return fmt.Errorf("--data: %w", err)
	}
	kept, end, err := o.open(cmd.Context())
	if err != nil {
		return err
	}
	err = controller.Run(cmd.Context(), controller.Config{
		Store: kept, Name: o.name, Listen: o.listen, RunDir: runDir, AuditDir: o.data, Limits: o.limits,
		Enforce: o.enforce, Log: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)),
	})
	return errors.Join(err, kept.Close(), end())
}

// open opens the store; end ends what is behind it.
func (o *runOptions) open(ctx context.Context) (kept store.Store, end func() error, err error) {
	if len(o.endpoints) == 0 {
		server, err := etcdstore.StartEmbedded(context.WithoutCancel(ctx), o.data)
		if err != nil {
			return nil, nil, err
		}
		return server.Store(), server.Close, nil
	}
	security, err := o.security()
	if err != nil {
		return nil, nil, err
	}
	kept, err = etcdstore.Connect(o.endpoints, security)
	return kept, func() error { return nil }, err
}

// security is how etcd is trusted, and how it trusts the controller.
func (o *runOptions) security() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.ca != "" {
		data, err := os.ReadFile(o.ca)
		if err != nil {
			return nil, fmt.Errorf("--etcd-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("--etcd-ca: %s has no certificate in PEM", o.ca)
		}
	}
	if o.cert != "" || o.key != "" {
		pair, err := tls.LoadX509KeyPair(o.cert, o.key)
		if err != nil {
			return nil, fmt.Errorf("--etcd-cert, --etcd-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
