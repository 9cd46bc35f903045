package nsstate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A container with NET_ADMIN can make these lists arbitrarily long. The libraries return whole lists, so
// their lengths are checked first, one message at a time.
const (
	maxEntries = 4096
	maxBytes   = 4 << 20
)

// list is a list that the kernel keeps for a namespace.
type list struct {
	what, kind string
	protocol   int // of netlink
	request    int
	header     int // bytes of the request's header; all zero asks for everything
}

var (
	filterLists = []list{
		filterList("tables", unix.NFT_MSG_GETTABLE),
		filterList("chains", unix.NFT_MSG_GETCHAIN),
		filterList("rules", unix.NFT_MSG_GETRULE),
	}
	networkLists = []list{
		{devices, devices, unix.NETLINK_ROUTE, unix.RTM_GETLINK, unix.SizeofIfInfomsg},
		{addresses, addresses, unix.NETLINK_ROUTE, unix.RTM_GETADDR, unix.SizeofIfAddrmsg},
		{routes, routes, unix.NETLINK_ROUTE, unix.RTM_GETROUTE, unix.SizeofRtMsg},
		{rules, rules, unix.NETLINK_ROUTE, unix.RTM_GETRULE, unix.SizeofRtMsg},
		{"queueing disciplines", traffic, unix.NETLINK_ROUTE, unix.RTM_GETQDISC, nl.SizeofTcMsg},
	}
	neighbourList = list{neighbour, neighbour, unix.NETLINK_ROUTE, unix.RTM_GETNEIGH, unix.SizeofNdMsg}
	ipsecLists    = []list{
		{ipsec, ipsec, unix.NETLINK_XFRM, nl.XFRM_MSG_GETPOLICY, 0},
		{ipsec, ipsec, unix.NETLINK_XFRM, nl.XFRM_MSG_GETSA, 0},
	}
)

func filterList(what string, request int) list {
	request |= unix.NFNL_SUBSYS_NFTABLES << 8
	return list{"nftables " + what, filterRules, unix.NETLINK_NETFILTER, request, nl.SizeofNfgenmsg}
}

// tooLong finds lists that are longer than this package reads.
func tooLong(ctx context.Context, ns netns.NsHandle, lists []list) ([]Finding, error) {
	var found []Finding
	for _, one := range lists {
		entries, bytes := 0, 0
		err := one.each(ctx, ns, func(entry []byte) bool {
			entries, bytes = entries+1, bytes+len(entry)
			return entries <= maxEntries && bytes <= maxBytes
		})
		if err != nil {
			return nil, fmt.Errorf("count %s: %w", one.what, err)
		}
		if entries > maxEntries || bytes > maxBytes {
			what := "more %s than Godwit looks at (%d, or %d MiB)"
			found = append(found, made(one.kind, fmt.Sprintf(what, one.what, maxEntries, maxBytes>>20)))
		}
	}
	return found, nil
}

// each calls visit for the entries of a list until visit returns false.
func (l list) each(ctx context.Context, ns netns.NsHandle, visit func(entry []byte) bool) error {
	socket, err := nl.GetNetlinkSocketAt(ns, netns.None(), l.protocol)
	if err != nil {
		return err
	}
	defer socket.Close() // also ends a list that was not read to its end
	request := nl.NewNetlinkRequest(l.request, unix.NLM_F_DUMP)
	request.AddRawData(make([]byte, l.header))
	err = errors.Join(socket.SetReceiveTimeout(&nl.SocketTimeoutTv), socket.Send(request))
	for err == nil {
		messages, from, failed := socket.Receive()
		if err = errors.Join(failed, ctx.Err()); err != nil {
			break
		}
		if from.Pid != nl.PidKernel {
			continue // the container's: with NET_ADMIN it can send to this socket
		}
		for _, m := range messages {
			if m.Header.Type == unix.NLMSG_DONE || m.Header.Type == unix.NLMSG_ERROR {
				return errorOf(m.Data)
			}
			if !visit(m.Data) {
				return nil
			}
		}
	}
	return err
}

// errorOf returns the error with which a list ended.
func errorOf(data []byte) error {
	if len(data) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(data)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// permanent reads the permanent neighbours. The kernel finds others by itself.
func permanent(ctx context.Context, ns netns.NsHandle) ([]netlink.Neigh, error) {
	var all []netlink.Neigh
	err := neighbourList.each(ctx, ns, func(entry []byte) bool {
		one, err := netlink.NeighDeserialize(entry)
		if err == nil && one.State&netlink.NUD_PERMANENT != 0 {
			all = append(all, *one)
		}
		return len(all) < maxEntries // all but the gateway are refused
	})
	return all, err
}

// hasIPsec reports whether there is any IPsec policy or state; a kernel without IPsec has none. It does not
// count them, because their number changes whenever keys change.
func hasIPsec(ctx context.Context, ns netns.NsHandle) (has bool, err error) {
	for _, one := range ipsecLists {
		err = errors.Join(err, one.each(ctx, ns, func([]byte) bool {
			has = true
			return false
		}))
	}
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return false, nil
	}
	return has, err
}
