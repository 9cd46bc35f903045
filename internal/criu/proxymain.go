package criu

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/criu/vet"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// ProxyMain is the main function when runc calls this program as `criu`. Without GODWIT_GATE in the
// environment, and for anything but a restore, it becomes the real CRIU. For a restore it is the proxy: see
// ProxyEnv and Proxy. It returns the exit code.
func ProxyMain(args []string) int {
	err := proxyMain(args)
	if err == nil {
		return 0
	}
	if !errors.Is(err, errNoted) {
		fmt.Fprintln(os.Stderr, "godwit restore proxy:", err)
	}
	return 1
}

// errNoted is a failure that was already reported to the agent and logged.
var errNoted = errors.New("the restore failed")

func proxyMain(args []string) error {
	path, err := findPath()
	if err != nil {
		return err
	}
	if isWrapper(args) {
		return becomeCRIU(path, args)
	}
	fd, restore := -1, false
	if os.Getenv(envProxy) != "" && len(args) == 3 && args[1] == "swrk" {
		if fd, err = strconv.Atoi(args[2]); err != nil {
			return fmt.Errorf("socket number %q: %w", args[2], err)
		}
		if restore, err = isRestore(fd); err != nil {
			return fmt.Errorf("look at runc's request: %w", err)
		}
	}
	if !restore {
		return syscall.Exec(path, append([]string{path}, args[1:]...), os.Environ())
	}
	p := &proxyProcess{criu: path, record: os.Getenv(envRecord)}
	return p.end(p.run(fd, os.Getenv(envProxy)))
}

// isRestore waits for the request and peeks at it without taking it from the socket.
func isRestore(fd int) (bool, error) {
	buf := make([]byte, maxMessage)
	for {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_PEEK)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err != nil &&
				!errors.Is(err, unix.EINTR) {
				return false, err
			}
			continue
		case err != nil:
			return false, err
		}
		var request rpc.CriuReq
		if err := proto.Unmarshal(buf[:n], &request); err != nil {
			return false, err
		}
		return request.GetType() == rpc.CriuReqType_RESTORE, nil
	}
}

// proxyProcess is the proxy between runc and CRIU, controlled by the agent.
type proxyProcess struct {
	criu    string // path
	record  string
	lock    *os.File
	runc    *link  // nil: the engine waits for CRIU itself
	cgroup  string // with a wrapper: the container's cgroup
	real    *session
	agent   *proxyConn
	workDir string
	pid     int                         // of the restored first process
	locks   map[int][]kernel.RecordLock // of all processes: see retakeLocks
	opens   bool                        // the agent opens the network once there is a record
	allowed bool                        // the record was made, or may have been
	freed   bool                        // CRIU was told to resume the processes
	// CRIU reported a failure: it has killed the processes that it made before any of them ran
	refused bool
	going   bool        // from now on CRIU may resume the processes that it made
	stuck   atomic.Bool // CRIU failed, but hung before it reported that
	agreed  vet.Agreed  // what the images may say

	placeholder *kernel.PIDPlaceholder // for the first process; nil: none
	handover    <-chan error           // receives the result of handing over its PID; nil: not begun
}

// run runs the proxy from start to end. fd is the connection to runc.
func (p *proxyProcess) run(fd int, socket string) error {
	runc, err := newLink(fd, "runc")
	if err != nil {
		return err
	}
	p.runc = runc
	var request rpc.CriuReq
	if _, err := p.runc.receive(&request); err != nil {
		return fmt.Errorf("receive runc's request: %w", err)
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return fmt.Errorf("connect to the agent: %w", err)
	}
	p.agent = newProxyConn(conn)
	if p.lock, err = lockRecord(p.record); err != nil {
		return err
	}
	if p.agreed, err = agreedHere(); err != nil {
		return err
	}
	if err := p.startReal(&request); err != nil {
		return err
	}
	// runc has put this process into the container's cgroup, for the sake of CRIU, which is in it now. The
	// proxy would count against the container's limits, and be frozen and killed with it.
	if err := cgroup.JoinOf(os.Getppid()); err != nil {
		return err
	}
	if p.placeholder != nil {
		if err := p.introduce(os.Getenv(envPlaceholder)); err != nil {
			return err
		}
	}
	if err := p.waitForGo(&request); err != nil {
		return err
	}
	if err := p.real.send(&request, nil); err != nil {
		return fmt.Errorf("send the request to CRIU: %w", err)
	}
	return p.relay()
}

// startReal starts CRIU and adapts the request for it: descriptors in the request are numbers in runc.
func (p *proxyProcess) startReal(request *rpc.CriuReq) error {
	o := request.GetOpts()
	if o == nil {
		return errors.New("runc's request has no options")
	}
	inherited, err := inheritedFiles(o)
	if err != nil {
		return err
	}
	with := sessionFiles{
		stdio: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}, more: inherited, network: networkOf(o, inherited),
	}
	p.agreed.NetworkHeld = with.network != nil
	if os.Getenv(envCgroupNamespace) != "" {
		// the root of the namespace is the container's cgroup, where runc has put this process
		with.namespaces = unix.CLONE_NEWCGROUP
	}
	p.real, err = startSession(p.criu, with)
	if err != nil {
		return err
	}
	peer, err := peerOf(p.runc)
	if err != nil {
		return err
	}
	for _, fd := range []*int32{o.ImagesDirFd, o.WorkDirFd} {
		if fd == nil || *fd < 0 {
			continue
		}
		dir, err := unix.Open(fmt.Sprintf("/proc/%d/fd/%d", peer, *fd), unix.O_RDONLY|unix.O_DIRECTORY|
			unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open directory %d of runc: %w", *fd, err)
		}
		*fd = int32(dir) // stays open: CRIU opens it through /proc/PROXY/fd
	}
	p.workDir = fmt.Sprintf("/proc/self/fd/%d", o.GetImagesDirFd())
	if o.WorkDirFd != nil {
		p.workDir = fmt.Sprintf("/proc/self/fd/%d", o.GetWorkDirFd())
	}
	p.settle(o)
	if os.Getenv(envPlaceholder) != "" {
		if p.placeholder, err = startPlaceholder(with.network); err != nil {
			return err
		}
	}
	return hideDirectories(o)
}

// hideDirectories gives CRIU an empty directory for the mounts that hide directories of the node
// (maskedMounts). The directory is beside the agent's socket, where only this container's files are, and
// exists as long as the container. It is a separate file system to which nobody can write, because CRIU
// does not give the mounts that it makes of it the flags of the dumped mounts.
func hideDirectories(o *rpc.CriuOpts) error {
	dir := filepath.Join(filepath.Dir(os.Getenv(envProxy)), "masked")
	if err := os.Mkdir(dir, 0o555); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the directory that masks others: %w", err)
	}
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, "mode=0555,size=4k,nr_inodes=1"); err != nil {
		return fmt.Errorf("make the directory that masks others: %w", err)
	}
	o.ExtMnt = append(o.ExtMnt, &rpc.ExtMountMap{Key: proto.String(maskedDirectory), Val: proto.String(dir)})
	return nil
}

// settle sets options that must not depend on the node's /etc/criu/runc.conf or on annotations.
func (p *proxyProcess) settle(o *rpc.CriuOpts) {
	o.ConfigFile = nil
	o.LogLevel = proto.Int32(logWarnings)
	o.TcpEstablished = proto.Bool(true)
	o.FileLocks = proto.Bool(true)
	o.LinkRemap = proto.Bool(true)
	o.NetworkLock = rpc.CriuNetworkLockMethod_SKIP.Enum()
	o.ManageCgroups = nil
	o.ManageCgroupsMode = rpc.CriuCgMode_IGNORE.Enum()
}

// inheritedFiles returns the descriptors from 4 on that runc gave to this process for CRIU. Each keeps its
// number.
func inheritedFiles(o *rpc.CriuOpts) ([]*os.File, error) {
	last := swrkFD
	for _, i := range o.GetInheritFd() {
		if i.GetFd() < 0 || i.GetFd() > 64 {
			return nil, fmt.Errorf("runc's request names descriptor %d for %s", i.GetFd(), i.GetKey())
		}
		last = max(last, int(i.GetFd()))
	}
	var files []*os.File
	for fd := swrkFD + 1; fd <= last; fd++ {
		files = append(files, os.NewFile(uintptr(fd), fmt.Sprintf("inherited-%d", fd)))
	}
	return files, nil
}

// networkOf returns the network namespace that the engine keeps for the container, in which CRIU ran during
// the dump (NetworkFor).
func networkOf(o *rpc.CriuOpts, inherited []*os.File) *os.File {
	for _, i := range o.GetInheritFd() {
		if i.GetKey() == networkKey && i.GetFd() > swrkFD {
			return inherited[i.GetFd()-swrkFD-1]
		}
	}
	return nil
}

// peerOf returns the PID of the process that made the connection: runc.
func peerOf(l *link) (int, error) { return peerPID(l.conn) }

// waitForGo reports to the agent that everything is ready, and returns when the images are complete.
func (p *proxyProcess) waitForGo(request *rpc.CriuReq) error {
	if err := p.agent.send(proxyMessage{Kind: kindReady}); err != nil {
		return fmt.Errorf("tell the agent: %w", err)
	}
	vet.Prepare() // while the container runs
	m, err := p.agent.receive()
	if err != nil {
		return fmt.Errorf("wait for the agent: it is gone or has given up: %w", err)
	}
	if m.Kind != kindGo {
		return fmt.Errorf("the agent says %q, want %q", m.Kind, kindGo)
	}
	if err := p.vet(request.GetOpts()); err != nil {
		return err
	}
	if m.Root != "" {
		request.Opts.Root = proto.String(m.Root)
	}
	p.opens = m.Opens
	if m.Lazy {
		request.Opts.LazyPages = proto.Bool(true)
	}
	if err := p.expectLocks(request.GetOpts()); err != nil {
		return err
	}
	return p.inherit(request.GetOpts(), m.Files)
}

// expectLocks checks whether there are locks that may have to be taken again. If so, CRIU must not trace
// the first process. CRIU traces it, to notice its end, if it makes the process as its own sibling, which
// runc requests. As a child of CRIU, the first process passes to this process when CRIU ends.
func (p *proxyProcess) expectLocks(o *rpc.CriuOpts) error {
	var err error
	if p.locks, err = dumpedLocks(fmt.Sprintf("/proc/self/fd/%d", o.GetImagesDirFd())); err != nil ||
		len(p.locks) == 0 {
		return err
	}
	if p.runc == nil {
		return nil // the engine expects it as its child; a lock that is missing then ends the restore
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("take over the container's first process: %w", err)
	}
	o.RstSibling = nil
	return nil
}

// forRunc are the notifications on which runc has work to do. The proxy itself answers the others, on which
// runc does nothing.
var forRunc = [...]string{"setup-namespaces", "orphan-pts-master", "post-restore"}

// relay passes messages between CRIU and runc until CRIU's last one.
func (p *proxyProcess) relay() error {
	stop := p.watchFailure(endPatience)
	defer stop()
	for {
		var m rpc.CriuResp
		rights, err := p.real.receive(&m)
		if err != nil {
			p.refused = p.stuck.Load() && !p.going
			return fmt.Errorf("CRIU ended during the restore: %w", err)
		}
		if m.GetType() != rpc.CriuReqType_NOTIFY {
			return p.finish(&m)
		}
		if err := p.notified(&m, rights); err != nil {
			return err
		}
	}
}

// notified serves one notification. post-restore is the last one at which a refusal, or the end of this
// process, makes CRIU kill what it restored: all sockets and processes exist and wait in CRIU's own code.
// At the following notifications (network-unlock, pre-resume) CRIU ignores the answer (criu/cr-restore.c,
// restore_root_task).
func (p *proxyProcess) notified(m *rpc.CriuResp, rights []byte) error {
	script := m.GetNotify().GetScript()
	reply := &rpc.CriuReq{Type: rpc.CriuReqType_NOTIFY.Enum(), NotifySuccess: proto.Bool(true)}
	switch {
	case script == "pre-restore" && p.placeholder != nil:
		var err error
		if p.handover, err = p.placeholder.HandOver(p.real.pid()); err != nil {
			return err
		}
	case script == "post-restore":
		p.pid = int(m.GetNotify().GetPid())
		if err := p.checkPID(); err != nil {
			return err
		}
		if len(p.locks) > 0 {
			if err := retakeLocks(p.pid, p.locks); err != nil {
				return fmt.Errorf("take the file locks again: %w", err)
			}
		}
		if err := p.askBoth(m, rights); err != nil {
			return err
		}
	case slices.Contains(forRunc[:], script):
		if err := p.askRunc(m, rights); err != nil {
			return err
		}
	case script == "pre-resume":
		p.going = true
	case script == "post-resume":
		at := time.Now()
		if err := p.agent.send(proxyMessage{Kind: kindResumed, PID: p.pid, At: at.UnixNano()}); err != nil {
			p.note("the agent is gone, the container runs: " + err.Error())
		}
	}
	if !p.real.alive() { // a send would succeed: processes that CRIU made have the socket open
		return fmt.Errorf("CRIU ended at %s", script)
	}
	if err := p.real.send(reply, nil); err != nil {
		return fmt.Errorf("answer CRIU's %s: %w", script, err)
	}
	p.freed = p.allowed
	return nil
}

// askRunc passes a notification to runc and waits for its answer.
func (p *proxyProcess) askRunc(m *rpc.CriuResp, rights []byte) error {
	if p.runc == nil {
		return nil
	}
	if err := p.runc.send(m, rights); err != nil {
		return fmt.Errorf("pass %s to runc: %w", m.GetNotify().GetScript(), err)
	}
	var answer rpc.CriuReq
	if _, err := p.runc.receive(&answer); err != nil {
		return fmt.Errorf("wait for runc's answer to %s: %w", m.GetNotify().GetScript(), err)
	}
	if !answer.GetNotifySuccess() {
		return fmt.Errorf("runc refuses %s", m.GetNotify().GetScript())
	}
	return nil
}

// askBoth asks the agent whether the container may run, and meanwhile lets runc write its state. When both
// agree, the record is made. Only then does the agent open the network, and CRIU may continue.
func (p *proxyProcess) askBoth(m *rpc.CriuResp, rights []byte) error {
	runc := make(chan error, 1)
	go func() { runc <- p.askRunc(m, rights) }()
	err := p.askAgent(kindRestored, kindResume)
	if err = firstOf(err, <-runc); err != nil {
		return err
	}
	p.allowed = true // set first: a record that could not be made durable may exist all the same
	if err := makeRecord(p.record); err != nil {
		return fmt.Errorf("record that the container may run: %w", err)
	}
	if !p.opens {
		return nil
	}
	return p.askAgent(kindRecorded, kindOpen)
}

// askAgent reports a step to the agent, and waits for the answer that lets the proxy continue.
func (p *proxyProcess) askAgent(reached, answer string) error {
	if err := p.agent.send(proxyMessage{Kind: reached}); err != nil {
		return fmt.Errorf("ask the agent whether to resume: %w", err)
	}
	said, err := p.agent.receive()
	if err != nil {
		return fmt.Errorf("the agent is gone or has given up before the container was resumed: %w", err)
	}
	if said.Kind != answer {
		return fmt.Errorf("the agent says %q, want %q", said.Kind, answer)
	}
	return nil
}

// finish passes CRIU's last answer to runc and waits for CRIU's end. Then the restored first process is a
// child of this process, and passes to the monitor when the proxy ends.
func (p *proxyProcess) finish(m *rpc.CriuResp) error {
	var err error
	if p.runc != nil {
		err = p.runc.send(m, nil)
	}
	if !m.GetSuccess() { // the agent gets what matters
		p.refused = true
		return fmt.Errorf("CRIU failed to restore (errno %d)", m.GetCrErrno())
	}
	if err != nil {
		return fmt.Errorf("pass CRIU's answer to runc: %w", err)
	}
	if p.runc == nil {
		p.real.close() // CRIU waits for more, and the engine for CRIU's end
	}
	return p.real.wait()
}
