package vet

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/creds"
	core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of messages.
const (
	coreMachine = 1 // of core_entry (images/core.proto)
	coreTask    = 3
	coreThread  = 5

	credsNoNewPrivileges = 18 // of creds_entry (images/creds.proto)
	credsAmbient         = 19
)

// States of a process (criu/include/pstree.h).
const (
	stateDead   = 2
	stateZombie = 6
)

// process checks what the threads of a process may do.
func (v *vetted) process(p *pstree.PstreeEntry) error {
	leader, err := v.core(p.GetPid())
	if err != nil {
		return fmt.Errorf("process %d: %w", p.GetPid(), err)
	}
	if state := leader.GetTc().GetTaskState(); state == stateDead || state == stateZombie {
		return nil // a zombie, which waits for its parent
	}
	if err := v.thread(leader.GetThreadCore(), nil); err != nil {
		return fmt.Errorf("process %d: %w", p.GetPid(), err)
	}
	for _, tid := range p.GetThreads() {
		if tid == p.GetPid() {
			continue
		}
		c, err := v.core(tid)
		if err == nil {
			err = v.thread(c.GetThreadCore(), leader.GetThreadCore())
		}
		if err != nil {
			return fmt.Errorf("thread %d of process %d: %w", tid, p.GetPid(), err)
		}
	}
	return nil
}

// core reads the image of a thread, except its registers.
func (v *vetted) core(tid uint32) (*core.CoreEntry, error) {
	name := fmt.Sprintf("core-%d.img", tid)
	var c core.CoreEntry
	count := 0
	err := v.dir.each(name, magicCore, func(entry []byte) error {
		if count++; count > 1 {
			return fmt.Errorf("%w: it has more than one entry", errFormat)
		}
		wanted, err := pick(entry, coreMachine, coreTask, coreThread)
		if err != nil {
			return err
		}
		return decode(wanted, &c)
	})
	switch {
	case err != nil:
		return nil, err
	case count == 0:
		return nil, inImage(name, fmt.Errorf("%w: it has no entry, or is not there", errFormat))
	case c.GetTc().GetOldSeccompMode() != 0 || c.GetTc().GetOldSeccompFilter() != 0:
		return nil, inImage(name, fmt.Errorf("%w: the filter of system calls is in a field that is obsolete",
			errFormat))
	}
	return &c, nil
}

// thread checks a thread. leader is the first thread of its process; nil: this one is the first.
func (v *vetted) thread(t, leader *core.ThreadCoreEntry) error {
	if t.GetCreds() == nil {
		return fmt.Errorf("%w: it has no credentials", errFormat)
	}
	if err := v.creds(t.GetCreds()); err != nil {
		return err
	}
	return v.filtered(t, leader)
}

// creds checks credentials.
func (v *vetted) creds(c *creds.CredsEntry) error {
	ambient, noNewPrivileges, err := newerCreds(c)
	if err != nil {
		return err
	}
	sets := map[string]uint64{
		"effective": wordsOf(c.GetCapEff()), "permitted": wordsOf(c.GetCapPrm()),
		"inheritable": wordsOf(c.GetCapInh()),
		"bounding":    wordsOf(c.GetCapBnd()), "ambient": ambient,
	}
	for name, set := range sets {
		if more := set &^ v.agreed.Capabilities; more != 0 {
			return fmt.Errorf("its %s capabilities have %s, which the container's definition does not give",
				name, nameCapabilities(more))
		}
	}
	for _, words := range [][]uint32{c.GetCapEff(), c.GetCapPrm(), c.GetCapInh(), c.GetCapBnd()} {
		if len(words) != 2 {
			return fmt.Errorf("%w: its capabilities have %d words", errFormat, len(words))
		}
	}
	if v.agreed.NoNewPrivileges && !noNewPrivileges {
		return errors.New("it may gain privileges, which the container's definition forbids (no_new_privs)")
	}
	if err := v.users(c); err != nil {
		return err
	}
	return v.labelled(c)
}

// users checks the user and groups of a process that cannot change them: it lacks the capability, and has
// no_new_privs, which makes the kernel ignore set-user-ID and set-group-ID bits (execve(2)). Otherwise a
// program in the container's files may have given a process any user or group of its namespace. In a user
// namespace of its own, the container has its own numbers.
func (v *vetted) users(c *creds.CredsEntry) error {
	user := v.agreed.User
	if user == nil || !v.agreed.NoNewPrivileges || v.agreed.private(specs.UserNamespace) {
		return nil
	}
	for _, id := range []uint32{c.GetUid(), c.GetEuid(), c.GetSuid(), c.GetFsuid()} {
		if id != user.UID && !v.agreed.may("SETUID") {
			return fmt.Errorf("it runs as user %d, but the definition allows only user %d", id, user.UID)
		}
	}
	if v.agreed.may("SETGID") {
		return nil
	}
	for _, id := range []uint32{c.GetGid(), c.GetEgid(), c.GetSgid(), c.GetFsgid()} {
		if id != user.GID {
			return fmt.Errorf("it runs as group %d, but the definition allows only group %d", id, user.GID)
		}
	}
	for _, id := range c.GetGroups() {
		if id != user.GID && !slices.Contains(user.AdditionalGids, id) {
			return fmt.Errorf("it is a member of group %d, which the definition does not give it", id)
		}
	}
	return nil
}

// newerCreds reads the fields that the library does not know yet.
func newerCreds(c *creds.CredsEntry) (ambient uint64, noNewPrivileges bool, err error) {
	var words []uint32
	seen := false
	for rest := []byte(c.ProtoReflect().GetUnknown()); len(rest) > 0; {
		field, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return 0, false, fmt.Errorf("%w: %w", errFormat, protowire.ParseError(n))
		}
		value, size := uint64(0), protowire.ConsumeFieldValue(field, kind, rest[n:])
		if size < 0 {
			return 0, false, fmt.Errorf("%w: %w", errFormat, protowire.ParseError(size))
		}
		if kind == protowire.VarintType {
			value, _ = protowire.ConsumeVarint(rest[n:])
		}
		switch {
		case field == credsAmbient && kind == protowire.VarintType:
			words = append(words, uint32(value))
		case field == credsNoNewPrivileges && kind == protowire.VarintType && !seen:
			seen, noNewPrivileges = true, value == 1
		case field == credsAmbient, field == credsNoNewPrivileges:
			return 0, false, fmt.Errorf("%w: field %d of its credentials", errFormat, field)
		}
		rest = rest[n+size:]
	}
	if len(words) > 2 {
		return 0, false, fmt.Errorf("%w: its ambient capabilities have %d words", errFormat, len(words))
	}
	return wordsOf(words), noNewPrivileges, nil
}

// versioned matches the name of Podman's default AppArmor profile, which contains the version of its
// library (containers/common, pkg/apparmor). Each node has the profile of its own version.
var versioned = regexp.MustCompile(`^containers-default-[0-9][0-9.]*$`)

// labelled checks the label or profile of a security module. A process may confine itself further below its
// profile. The default profile of another version is as good: the process is restored under this node's.
func (v *vetted) labelled(c *creds.CredsEntry) error {
	want := v.agreed.Profile
	if want == "" {
		want = v.agreed.Label
	}
	if want == "" || want == "unconfined" {
		return nil
	}
	have := c.GetLsmProfile()
	if have == "" && !enforced(v.agreed) {
		return nil
	}
	if have == want || v.agreed.Profile != "" && strings.HasPrefix(have, want+"//") {
		return nil
	}
	if versioned.MatchString(have) && versioned.MatchString(v.agreed.Profile) {
		v.renamed.Store(true)
		return nil
	}
	return fmt.Errorf("its security profile is %q, the container's is %q", have, want)
}

// apparmor refuses AppArmor policies, because CRIU would load them into the kernel.
func (v *vetted) apparmor() error {
	const name = "apparmor.img"
	return v.dir.each(name, magicApparmor, func(entry []byte) error {
		if len(entry) > 0 {
			return errors.New("policies of AppArmor come with it")
		}
		return nil
	})
}
