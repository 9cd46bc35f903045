package shared

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotShared means that a directory is not the one to which the other node has written.
var ErrNotShared = errors.New("one node does not see there what the other writes")

// ErrLeft means that the token's file is still there: RemoveLeft may be able to remove it later.
var ErrLeft = errors.New("the file of the token is still there")

const (
	namePrefix  = ".godwit-proof-"
	magic       = "godwit storage proof 1 "
	secretBytes = 32
	secretHex   = 2 * secretBytes
	answerAt    = len(magic) + secretHex + 1
	fileBytes   = answerAt + secretHex + 1
)

var namePattern = regexp.MustCompile(`^\.godwit-proof-[0-9a-f]{32}$`)

// CheckName refuses a file name that NewName would not make.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("%.80q is not the name of a proof of shared storage", name)
	}
	return nil
}

// NewName makes the name of a file that proves shared storage. It is made before the file, so that it can
// be recorded.
func NewName() string { return namePrefix + randomHex(16) }

func randomHex(n int) string {
	secret := make([]byte, n)
	_, _ = rand.Read(secret) // never fails (crypto/rand)
	return hex.EncodeToString(secret)
}

// Answer is what the other node has found and done.
type Answer struct {
	Token string // as read
	Reply string // as written
	// Locked means that it could not lock what the first node has locked, so locks of files hold on both
	// nodes.
	Locked bool
	// Device and Inode are the token's numbers at the other node.
	Device, Inode uint64
}

// Claim is a token in a directory, for another node to find.
type Claim struct {
	directory *os.File
	file      *os.File
	name      string
	token     string
	before    unix.Stat_t // the directory without the token
	after     unix.Stat_t // and with it
}

// NewClaim writes a token into a directory under a name from NewName. Remove must be called. Error: ErrLeft
// if a part of it was written and cannot be removed.
func NewClaim(directory, name string) (*Claim, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	dir, err := os.OpenFile(directory, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("prove what is shared: %w", err)
	}
	c := &Claim{directory: dir, name: name, token: randomHex(secretBytes)}
	if err := c.write(); err != nil {
		return nil, errors.Join(fmt.Errorf("prove that %s is shared: %w", directory, err), c.Remove())
	}
	return c, nil
}

func (c *Claim) write() error {
	if err := unix.Fstat(int(c.directory.Fd()), &c.before); err != nil {
		return err
	}
	c.after = c.before
	file, err := openAt(c.directory, c.name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return fmt.Errorf("make a file there: %w", err)
	}
	c.file = file
	content := magic + c.token + " " + string(bytes.Repeat([]byte("-"), secretHex)) + "\n"
	if _, err := file.WriteString(content); err != nil {
		return fmt.Errorf("write a token: %w", err)
	}
	// Nobody else wants this lock. If the other node cannot get it, locks hold on both nodes. A file system
	// without locks has none.
	_ = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err := file.Sync(); err != nil {
		return fmt.Errorf("write a token: %w", err)
	}
	return unix.Fstat(int(c.directory.Fd()), &c.after)
}

func openAt(directory *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(directory.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC,
		0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(directory.Name(), name)), nil
}

// checkPatience is how long to wait for the answer to become visible here: some file systems query their
// server only now and then.
const checkPatience = 2 * time.Second

// Check returns ErrNotShared if an answer does not prove that the other node sees the same directory.
func (c *Claim) Check(answer Answer) error {
	if answer.Token != c.token || len(answer.Reply) != secretHex {
		return fmt.Errorf("%w: the token that it names is not the one that was written", ErrNotShared)
	}
	const pause = 20 * time.Millisecond
	for deadline := time.Now().Add(checkPatience); ; time.Sleep(pause) {
		seen, err := c.seen()
		if err == nil && seen == answer.Reply {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for the other node's answer in %s: %w", c.directory.Name(), err)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: the other node sees what this node writes, but its own writes do not "+
				"arrive here",
				ErrNotShared)
		}
	}
}

// SameInode reports whether the directory's files have the same device and inode numbers on both nodes, as
// the token does. Each node chooses the device number of a network file system by itself. FUSE servers may
// number files as they are used, so equal numbers of the token may be chance.
func (c *Claim) SameInode(answer Answer) bool {
	var system unix.Statfs_t
	err := unix.Fstatfs(int(c.file.Fd()), &system)
	if err != nil || int64(system.Type) == unix.FUSE_SUPER_MAGIC {
		return false
	}
	var stat unix.Stat_t
	err = unix.Fstat(int(c.file.Fd()), &stat)
	return err == nil && stat.Dev == answer.Device && stat.Ino == answer.Inode
}

// seen reads the answer. It opens the file again, because network file systems query their server on an
// open.
func (c *Claim) seen() (string, error) {
	file, err := openAt(c.directory, c.name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer file.Close()
	now, err := file.Stat()
	if err != nil {
		return "", err
	}
	made, err := c.file.Stat()
	if err != nil {
		return "", err
	}
	if !os.SameFile(now, made) {
		return "", fmt.Errorf("%w: another program has replaced the token's file", ErrNotShared)
	}
	token, reply, err := parse(file)
	if err == nil && token != c.token {
		err = fmt.Errorf("%w: the token has changed", ErrNotShared)
	}
	return reply, err
}

// parse parses a file in the format of write.
func parse(file *os.File) (token, reply string, err error) {
	content, err := io.ReadAll(io.NewSectionReader(file, 0, int64(fileBytes)+1))
	if err != nil {
		return "", "", err
	}
	if len(content) != fileBytes || !bytes.HasPrefix(content, []byte(magic)) || content[answerAt-1] != ' ' ||
		content[fileBytes-1] != '\n' {
		return "", "", fmt.Errorf("%w: the file is not a valid proof", ErrNotShared)
	}
	return string(content[len(magic) : answerAt-1]), string(content[answerAt : fileBytes-1]), nil
}

// Remove removes the token, and restores the directory's times unless somebody else has changed it
// meanwhile.
func (c *Claim) Remove() error {
	defer c.directory.Close()
	if c.file == nil {
		return nil
	}
	// The file is closed last. If the kernel does not wait for the server after a close (FUSE), the server
	// may consider a file open that is removed next, and so only hide it, just when it hears that nobody
	// has it open.
	defer c.file.Close()
	var now unix.Stat_t
	untouched := unix.Fstat(int(c.directory.Fd()), &now) == nil && now.Mtim == c.after.Mtim &&
		c.after.Mtim != c.before.Mtim
	if err := unix.Unlinkat(int(c.directory.Fd()), c.name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: remove %s: %w", ErrLeft, c.file.Name(), err)
	}
	if untouched {
		path := fmt.Sprintf("/proc/self/fd/%d", c.directory.Fd())
		// useful to people only
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{c.before.Atim, c.before.Mtim}, 0)
	}
	return nil
}

// Find looks for another node's token in a directory, and answers it. Error: ErrNotShared if it is not there.
func Find(directory, name string) (Answer, error) {
	if err := CheckName(name); err != nil {
		return Answer{}, err
	}
	dir, err := os.OpenFile(directory, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return Answer{}, ErrNotShared
	}
	if err != nil {
		return Answer{}, fmt.Errorf("look for a token: %w", err)
	}
	defer dir.Close()
	file, err := openAt(dir, name, unix.O_RDWR)
	if errors.Is(err, unix.ENOENT) {
		return Answer{}, ErrNotShared
	}
	if err != nil {
		return Answer{}, fmt.Errorf("open the token: %w", err)
	}
	answer, err := respond(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return Answer{}, fmt.Errorf("answer the token in %s: %w", directory, err)
	}
	return answer, nil
}

// respond writes an answer into a token's file that has none yet. It leaves any other file as it is.
func respond(file *os.File) (Answer, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return Answer{}, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Size != int64(fileBytes) || stat.Nlink != 1 {
		return Answer{}, fmt.Errorf("%w: it is not a valid proof", ErrNotShared)
	}
	token, reply, err := parse(file)
	if err != nil {
		return Answer{}, err
	}
	if _, err := hex.DecodeString(token); err != nil ||
		reply != string(bytes.Repeat([]byte("-"), secretHex)) {
		return Answer{}, fmt.Errorf("%w: it has been answered already", ErrNotShared)
	}
	answer := Answer{Token: token, Reply: randomHex(secretBytes), Device: stat.Dev, Inode: stat.Ino}
	answer.Locked = errors.Is(unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	if _, err := file.WriteAt([]byte(answer.Reply), int64(answerAt)); err != nil {
		return Answer{}, err
	}
	return answer, file.Sync()
}

// RemoveLeft removes a token that a node has left because it ended too early.
func RemoveLeft(directory, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	err := os.Remove(filepath.Join(directory, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
