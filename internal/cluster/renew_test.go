package cluster

import "testing"

func TestRenewAtTheAuthority(t *testing.T) {
	first := newMembers(t, "a")[0]
	id := first.id
	before := id.Certificate().Leaf.SerialNumber
	if err := membersOf(first).renewNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	if id.Certificate().Leaf.SerialNumber.Cmp(before) == 0 {
		t.Error("the certificate is the same")
	}
	if entry := first.List()[0]; entry == first.entry || id.VerifyNode(entry) != nil {
		t.Error("the entry is not signed with the new certificate")
	}
}
