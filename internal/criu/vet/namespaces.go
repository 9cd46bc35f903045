package vet

import (
	"errors"
	"fmt"
	"slices"

	core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/netdev"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/userns"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// kinds are the namespaces that CRIU creates. The restore proxy creates the cgroup namespace.
var kinds = [...]specs.LinuxNamespaceType{
	specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace,
	specs.UserNamespace,
}

// ids are the namespaces of a process, as numbers that are valid within one dump. Equal numbers mean the
// same namespace.
type ids [len(kinds)]uint32

func idsOf(e *core.TaskKobjIdsEntry) ids {
	return ids{e.GetPidNsId(), e.GetNetNsId(), e.GetIpcNsId(), e.GetUtsNsId(), e.GetMntNsId(),
		e.GetUserNsId()}
}

// namespaces requires each process to be in the container's own namespaces. CRIU creates those that
// differed from its own at the dump. Where they did not differ, it leaves the process in its own, which are
// the node's.
func (v *vetted) namespaces(tree []*pstree.PstreeEntry) error {
	v.known = map[uint32]int{}
	for i, p := range tree {
		name := fmt.Sprintf("ids-%d.img", p.GetPid())
		var entry core.TaskKobjIdsEntry
		there, err := v.dir.one(name, magicIDs, &entry)
		if err != nil {
			return err
		}
		if !there {
			if i == 0 {
				return inImage(name, fmt.Errorf("%w: it is not there", errFormat))
			}
			continue // the process is in its parent's namespaces
		}
		its := idsOf(&entry)
		if err := v.inside(its); err != nil {
			return fmt.Errorf("process %d: %w", p.GetPid(), err)
		}
		if i == 0 {
			v.first = its
		}
		for k, id := range its {
			v.known[id] = k
		}
	}
	return v.userNamespace()
}

func (v *vetted) inside(its ids) error {
	for k, kind := range kinds {
		shared := its[k] == v.root[k]
		switch {
		case kind == specs.NetworkNamespace && v.agreed.NetworkHeld:
		case shared && v.agreed.private(kind):
			return fmt.Errorf("it would be in the node's %s namespace, not in one of the container's own",
				kind)
		case !shared && kind == specs.UserNamespace && !v.agreed.private(kind):
			return errors.New("it would be in a user namespace, which the container's definition does " +
				"not have")
		}
	}
	return nil
}

// userNamespace requires the agreed ID map.
func (v *vetted) userNamespace() error {
	for name := range v.dir.names {
		if _, is := number(name, "userns-"); !is {
			continue
		}
		var entry userns.UsernsEntry
		if _, err := v.dir.one(name, magicUserns, &entry); err != nil {
			return err
		}
		for what, maps := range map[string][2][]Extent{
			"user":  {v.agreed.UIDs, mapped(entry.GetUidMap())},
			"group": {v.agreed.GIDs, mapped(entry.GetGidMap())},
		} {
			if !sameMap(maps[0], maps[1]) {
				return inImage(name, fmt.Errorf("it maps %s ids %v, the container's definition %v", what,
					maps[1], maps[0]))
			}
		}
	}
	return nil
}

func mapped(of []*userns.UidGidExtent) []Extent {
	var out []Extent
	for _, e := range of {
		out = append(out, Extent{e.GetFirst(), e.GetLowerFirst(), e.GetCount()})
	}
	return out
}

// sameMap compares ID maps. CRIU reports them as the kernel does: sorted, and with adjacent ranges merged.
func sameMap(a, b []Extent) bool { return slices.Equal(joined(a), joined(b)) }

func joined(of []Extent) []Extent {
	of = slices.Clone(of)
	slices.SortFunc(of, func(a, b Extent) int { return int(int64(a.Inside) - int64(b.Inside)) })
	var out []Extent
	for _, e := range of {
		if n := len(out); n > 0 && out[n-1].Inside+out[n-1].Count == e.Inside &&
			out[n-1].Outside+out[n-1].Count == e.Outside {
			out[n-1].Count += e.Count
			continue
		}
		out = append(out, e)
	}
	return out
}

// networks are the images from which CRIU creates networks, some of them with the help of other programs.
var networks = []string{"netdev-", "ifaddr-", "route-", "route6-", "rule-", "iptables-", "ip6tables-",
	"nftables-"}

// network refuses images of the container's network if the container already has one. Its processes may
// have created other network namespaces.
func (v *vetted) network() error {
	if !v.agreed.NetworkHeld {
		return nil
	}
	makes := errors.New("the container already has its network, and this would make another one")
	own := v.first[slices.Index(kinds[:], specs.NetworkNamespace)]
	for _, prefix := range networks {
		if name := fmt.Sprintf("%s%d.img", prefix, own); v.dir.names[name] {
			return inImage(name, makes)
		}
	}
	name := fmt.Sprintf("netns-%d.img", own)
	var entry netdev.NetnsEntry
	there, err := v.dir.one(name, magicNetns, &entry)
	if err == nil && there && entry.GetExtKey() == "" {
		err = inImage(name, makes)
	}
	return err
}
