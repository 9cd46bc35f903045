package wireguard

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// Bounds of an answer: a cluster has at most 4095 nodes, of some 500 bytes each.
const (
	maxAnswer = 4 << 20
	maxPeers  = 4096
)

// encodeSet writes a change in the format of the configuration protocol.
func encodeSet(c change) string {
	var b strings.Builder
	b.WriteString("set=1\n")
	line := func(key, value string) { fmt.Fprintf(&b, "%s=%s\n", key, value) }
	if c.private != nil {
		line("private_key", hex.EncodeToString(c.private[:]))
	}
	if c.port != nil {
		line("listen_port", strconv.Itoa(*c.port))
	}
	for _, key := range c.remove {
		line("public_key", hex.EncodeToString(key[:]))
		line("remove", "true")
	}
	for _, peer := range c.set {
		line("public_key", hex.EncodeToString(peer.Key[:]))
		if peer.Endpoint.IsValid() {
			line("endpoint", peer.Endpoint.String())
		}
		line("replace_allowed_ips", "true")
		line("allowed_ip", netip.PrefixFrom(peer.Address, peer.Address.BitLen()).String())
		line("persistent_keepalive_interval", strconv.Itoa(keepalive))
	}
	b.WriteString("\n")
	return b.String()
}

// readAnswer reads the lines of an answer up to the empty line, and passes each line to a function. A
// nonzero error number is an error.
func readAnswer(r io.Reader, each func(key, value string) error) error {
	scanner := bufio.NewScanner(io.LimitReader(r, maxAnswer))
	for scanner.Scan() {
		if scanner.Text() == "" {
			return nil
		}
		key, value, ok := strings.Cut(scanner.Text(), "=")
		switch {
		case !ok:
			return fmt.Errorf("line %.80q of the answer has no value", scanner.Text())
		case key == "errno" && value != "0":
			return fmt.Errorf("error %.20s; the log of the process tells more", value)
		case key == "errno":
		default:
			if err := each(key, value); err != nil {
				return fmt.Errorf("%.40s in the answer: %w", key, err)
			}
		}
	}
	if err := scanner.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

// decodeGet reads the answer to get=1.
func decodeGet(r io.Reader) (State, error) {
	var s State
	err := readAnswer(r, s.line)
	return s, err
}

// line reads one line of the answer. It ignores lines that do not matter here.
func (s *State) line(key, value string) (err error) {
	switch key {
	case "private_key":
		s.Private, err = parseHex(value)
		return err
	case "listen_port":
		s.Port, err = strconv.Atoi(value)
		return err
	case "public_key":
		if len(s.Peers) == maxPeers {
			return fmt.Errorf("more than %d peers", maxPeers)
		}
		peer := Peer{}
		peer.Key, err = parseHex(value)
		s.Peers = append(s.Peers, peer)
		return err
	}
	if len(s.Peers) == 0 {
		return nil
	}
	peer := &s.Peers[len(s.Peers)-1]
	switch key {
	case "endpoint":
		peer.Endpoint, err = netip.ParseAddrPort(value)
	case "allowed_ip":
		var prefix netip.Prefix
		prefix, err = netip.ParsePrefix(value)
		if err == nil && (!prefix.IsSingleIP() || peer.Address.IsValid()) {
			err = errors.New("not one address")
		}
		peer.Address = prefix.Addr()
	}
	return err
}
