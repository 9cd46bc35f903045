package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/network"
)

const (
	// Name is the name of the benchmark.
	Name          = "network"
	metricCarried = "carried_bytes_per_second"
	metricBusy    = "processors_ratio" // busy processors of the machine, 100 % for each
	kernelLeast   = 2e9 / 8            // bytes per second: the requirement for the kernel's WireGuard
)

// Config configures the suite network.
type Config struct {
	Quick    bool     // one short sample
	Ways     []string // all if empty
	Progress func(string)
}

// networkWay is one overlay.
type networkWay struct {
	name    string
	overlay network.Overlay
}

func networkWays() []networkWay {
	return []networkWay{
		{"vxlan", network.OverlayVXLAN},
		{"wireguard by the kernel", network.OverlayWireGuard},
		{"wireguard by a process", network.OverlayUserspace},
	}
}

func (w networkWay) title() string { return w.name }

// Ways lists the ways that Network compares.
func Ways() []string { return testbed.NamesOf(networkWays(), networkWay.title) }

// Run measures the throughput of a TCP connection through the overlay between two nodes: two network
// namespaces of this machine, joined by a link without loss or delay.
func Run(ctx context.Context, config Config) (results.Result, error) {
	chosen, err := testbed.Choose("way", networkWays(), networkWay.title, config.Ways)
	if err != nil {
		return results.Result{}, err
	}
	if os.Geteuid() != 0 {
		return results.Result{}, errors.New("a benchmark must run as root: it makes network namespaces")
	}
	result := results.Result{Suite: Name, Started: time.Now().UTC(), Rows: []results.Row{},
		Asked: []results.Asked{}}
	if result.Host, err = testbed.ThisHost(criu.Tool{}); err != nil {
		return result, err
	}
	for _, way := range chosen {
		one := &results.Series{Workload: "one TCP connection", Link: "veth", Way: way.name}
		err := measureNetwork(ctx, config, way, one)
		if ctx.Err() != nil {
			return result, ctx.Err()
		}
		if err != nil {
			one.Note = err.Error() // even if the kernel has no WireGuard
		}
		result.Rows = append(result.Rows, one.Rows()...)
		if config.Progress != nil {
			config.Progress(way.name + " is measured")
		}
	}
	if row := results.Find(result.Rows, "one TCP connection", "veth", "wireguard by the kernel",
		metricCarried); row != nil {
		result.Asked = append(result.Asked,
			results.Asked{What: "WireGuard by the kernel carries 2 Gbit/s", Way: row.Way,
				Unit:  "bytes_per_second",
				Least: true, Limit: kernelLeast, Value: *row.Median, Met: *row.Median >= kernelLeast})
	}
	return result, nil
}

// measureNetwork makes both nodes, measures, and removes them.
func measureNetwork(ctx context.Context, config Config, way networkWay,
	to *results.Series) (failed error) {
	samples, long := 5, 3*time.Second
	if config.Quick {
		samples, long = 1, 300*time.Millisecond
	}
	dir, err := os.MkdirTemp("", "godwit-bench-")
	if err != nil {
		return err
	}
	defer func() { failed = errors.Join(failed, os.RemoveAll(dir)) }()
	pair, err := newNetworkPair(dir, way.overlay)
	defer func() { failed = errors.Join(failed, pair.close()) }()
	if err != nil {
		return err
	}
	from, into, err := pair.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _, _ = from.Close(), into.Close() }()
	go stream(from)
	if _, _, err := carried(into, long); err != nil { // warm
		return err
	}
	for range samples {
		rate, busy, err := carried(into, long)
		if err != nil {
			return err
		}
		to.Add([]results.Measurement{{metricCarried, rate}, {metricBusy, busy}})
	}
	return nil
}

const streamBuffer = 256 << 10

// stream sends until the connection is closed.
func stream(conn net.Conn) {
	buffer := make([]byte, streamBuffer)
	for {
		if _, err := conn.Write(buffer); err != nil {
			return
		}
	}
}

// carried reads for some time, and returns the bytes per second, and the number of busy processors.
func carried(conn net.Conn, long time.Duration) (rate, busy float64, err error) {
	buffer := make([]byte, streamBuffer)
	began, total := time.Now(), 0
	before, err := busySeconds()
	for err == nil && time.Since(began) < long {
		var count int
		err = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if err == nil {
			count, err = conn.Read(buffer)
		}
		total += count
	}
	took := time.Since(began).Seconds()
	after, busyErr := busySeconds()
	return float64(total) / took, (after - before) / took, errors.Join(err, busyErr)
}

// busySeconds returns the busy time of this machine's processors (proc(5), /proc/stat: hundredths of a
// second).
func busySeconds() (float64, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	var user, nice, system, idle, wait, interrupts, soft float64
	if _, err := fmt.Sscanf(string(data), "cpu %f %f %f %f %f %f %f", &user, &nice, &system, &idle, &wait,
		&interrupts, &soft); err != nil {
		return 0, fmt.Errorf("read /proc/stat: %w", err)
	}
	return (user + nice + system + interrupts + soft) / 100, nil
}

// networkPair is a pair of nodes.
type networkPair struct {
	namespaces []netns.NsHandle
	configs    []network.Config
	nodes      []*network.Network
}

// newNetworkPair makes the nodes. With an error, the result has the parts made so far.
func newNetworkPair(dir string, overlay network.Overlay) (*networkPair, error) {
	p := &networkPair{}
	for range testbed.Nodes {
		ns, err := newNamespace()
		if err != nil {
			return p, err
		}
		p.namespaces = append(p.namespaces, ns)
	}
	if err := p.join(); err != nil {
		return p, err
	}
	var peers []network.Peer
	for i, name := range testbed.Nodes {
		config := network.Config{
			NodeName: name, NodeNumber: i + 1, Pool: netip.MustParsePrefix("10.57.0.0/16"),
			Underlay: underlayOf(i), Overlay: overlay,
			RunDir: filepath.Join(dir, name, "run"), StateDir: filepath.Join(dir, name, "state"),
			Namespace: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(p.namespaces[i])),
		}
		p.configs = append(p.configs, config)
		node, err := network.New(config)
		if err != nil {
			return p, err
		}
		p.nodes = append(p.nodes, node)
		key, err := node.Tunnel().PublicKey()
		if err != nil {
			return p, err
		}
		peers = append(peers, network.Peer{Name: name, Number: i + 1, Underlay: config.Underlay, Key: key})
	}
	for i, node := range p.nodes {
		if err := node.SetPeers([]network.Peer{peers[1-i]}); err != nil {
			return p, err
		}
	}
	return p, nil
}

// underlayOf returns an address of RFC 2544, for measurements.
func underlayOf(node int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, byte(node + 1)}) }

// newNamespace makes a network namespace that exists while the handle is open.
func newNamespace() (ns netns.NsHandle, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		ns, err = netns.New()
	}()
	<-done
	if err != nil {
		return ns, fmt.Errorf("make a network namespace: %w", err)
	}
	return ns, nil
}

// join connects the two nodes.
func (p *networkPair) join() error {
	const device = "wire0"
	for i, ns := range p.namespaces {
		handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open a netlink socket: %w", err)
		}
		if i == 0 {
			pair := netlink.NewVeth(netlink.LinkAttrs{Name: device, TxQLen: -1})
			pair.PeerName, pair.PeerNamespace = device, netlink.NsFd(p.namespaces[1])
			err = handle.LinkAdd(pair)
		}
		var link netlink.Link
		if err == nil {
			link, err = handle.LinkByName(device)
		}
		if err == nil {
			own := &netlink.Addr{IPNet: &net.IPNet{IP: underlayOf(i).AsSlice(), Mask: net.CIDRMask(24, 32)}}
			err = errors.Join(handle.AddrAdd(link, own), handle.LinkSetUp(link))
		}
		handle.Close()
		if err != nil {
			return fmt.Errorf("lay a wire between the nodes: %w", err)
		}
	}
	return nil
}

// connect opens a connection through the overlay.
func (p *networkPair) connect(ctx context.Context) (from, into net.Conn, err error) {
	address := netip.AddrPortFrom(p.nodes[1].NodeAddress(), 7001).String()
	var listener net.Listener
	err = inNamespace(p.namespaces[1], func() (err error) {
		listener, err = new(net.ListenConfig).Listen(ctx, "tcp4", address)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = listener.Close() }()
	err = inNamespace(p.namespaces[0], func() (err error) {
		from, err = (&net.Dialer{Timeout: 20 * time.Second}).DialContext(ctx, "tcp4", address)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("connect through the overlay: %w", err)
	}
	if into, err = listener.Accept(); err != nil {
		return nil, nil, errors.Join(err, from.Close())
	}
	return from, into, nil
}

// inNamespace runs a function on a thread of a network namespace.
func inNamespace(ns netns.NsHandle, run func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		if err := netns.Set(ns); err != nil {
			done <- fmt.Errorf("enter a network namespace: %w", err)
			return
		}
		done <- run()
	}()
	return <-done
}

// close removes everything that was made.
func (p *networkPair) close() error {
	var errs []error
	for _, node := range p.nodes {
		errs = append(errs, node.Close())
	}
	for _, config := range p.configs {
		errs = append(errs, network.Cleanup(config))
	}
	for _, ns := range p.namespaces {
		errs = append(errs, ns.Close())
	}
	return errors.Join(errs...)
}
