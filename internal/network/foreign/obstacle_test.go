package foreign

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/godwit/godwit/internal/network/nft"
)

// TestAcceptsPool checks which rules count as accepting all packets of a pool.
func TestAcceptsPool(t *testing.T) {
	addresses := netip.MustParsePrefix("10.88.0.0/16")
	from := nft.InPrefix(nft.OffsetSource, addresses, true)
	for what, c := range map[string]struct {
		rule nft.Rule
		want bool
	}{
		"from the pool": {nft.Join(from, nft.Accept()), true},
		"counted":       {nft.Join(from, nft.Exprs(&expr.Counter{}), nft.Accept()), true},
		"drops":         {nft.Join(from, nft.Drop()), false},
		"not from the pool": {nft.Join(nft.InPrefix(nft.OffsetSource, addresses, false), nft.Accept()),
			false},
		"a narrower prefix": {nft.Join(nft.InPrefix(nft.OffsetSource, netip.MustParsePrefix("10.88.0.0/24"),
			true),
			nft.Accept()), false},
		"a further condition": {nft.Join(from, nft.Exprs(&expr.Ct{}), nft.Accept()), false},
		"no address":          {nft.Accept(), false},
	} {
		offset, is := acceptsPool(c.rule, addresses)
		if is != c.want || is && offset != nft.OffsetSource {
			t.Errorf("%s: %t at %d, want %t", what, is, offset, c.want)
		}
	}
}

// TestAcceptance checks that the remedy uses the place that the chain's program provides for users' rules.
func TestAcceptance(t *testing.T) {
	addresses := netip.MustParsePrefix("10.88.0.0/16")
	forward := &nftables.Chain{Name: "FORWARD", Table: &nftables.Table{Name: "filter"}}
	for chain, want := range map[string]string{
		PassChain: "iptables -I DOCKER-USER -s 10.88.0.0/16 -j ACCEPT", UserChain: "ufw route allow from",
		"other": "iptables -I FORWARD -s",
	} {
		if got := acceptance(forward, []*nftables.Chain{{Name: chain}}, addresses); !strings.HasPrefix(got,
			want) {
			t.Errorf("beside %s: %q, want %q", chain, got, want)
		}
	}
	other := &nftables.Chain{Name: "fwd", Table: &nftables.Table{Name: "t", Family: nftables.TableFamilyINet}}
	if got := acceptance(other, nil, addresses); !strings.HasPrefix(got,
		"nft insert rule inet t fwd ip saddr") {
		t.Errorf("in another table: %q", got)
	}
}

func TestPermission(t *testing.T) {
	state := t.TempDir()
	if RulesAllowed(state) {
		t.Error("rules are allowed from the start")
	}
	if err := AllowRules(state); err != nil || !RulesAllowed(state) {
		t.Errorf("rules are not allowed: %v", err)
	}
	for range 2 {
		if err := ForbidRules(state); err != nil || RulesAllowed(state) {
			t.Errorf("rules are allowed still: %v", err)
		}
	}
	if err := AllowRules(filepath.Join(state, "none")); err == nil {
		t.Error("a permission was written into a directory that does not exist")
	}
}

func TestInUse(t *testing.T) {
	addresses := netip.MustParsePrefix("10.88.0.0/16")
	if err := inUse(addresses, nil); err != nil {
		t.Error(err)
	}
	err := inUse(addresses, []use{{what: "a"}, {what: "b"}, {what: "c"}, {what: "d"}, {what: "e"}})
	if !errors.Is(err, ErrInUse) || !strings.HasSuffix(err.Error(), "a, b, c, 2 more") {
		t.Errorf("five uses: %v", err)
	}
}
