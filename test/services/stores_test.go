package services

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/go-ldap/ldap/v3"
)

// etcd is used through its JSON interface.
func etcd() service {
	return service{
		name: "etcd", port: 2379, user: "etcd", packages: []string{"etcd-server"},
		every: 50 * time.Millisecond,
		command: []string{"etcd", "--data-dir=/var/lib/etcd/default",
			"--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls=http://localhost:2379"},
		connect: func(ctx context.Context, to address, number int) (session, error) {
			conn, err := connectHTTP(ctx, to, "http")
			return etcdSession{conn, number}, err
		},
		lost: func(ctx context.Context, to address, number int, asked int64) (int64, error) {
			conn, err := connectHTTP(ctx, to, "http")
			if err != nil {
				return 0, err
			}
			defer conn.Close()
			kept, err := etcdSession{conn, number}.kept(ctx, etcdKey(number, 0), etcdKey(number, asked+1))
			return asked - int64(len(kept)), err
		},
	}
}

func etcdKey(number int, nth int64) []byte { return fmt.Appendf(nil, "%d/%08d", number, nth) }

type etcdSession struct {
	oneConn
	number int
}

type etcdPair struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

func (s etcdSession) Ask(ctx context.Context, nth int64) error {
	key := etcdKey(s.number, nth)
	content, err := json.Marshal(etcdPair{key, []byte(row(s.number, nth))})
	if err != nil {
		return err
	}
	if _, err := s.request(ctx, http.MethodPost, "/v3/kv/put", content); err != nil {
		return err
	}
	kept, err := s.kept(ctx, key, etcdKey(s.number, nth+1))
	if err == nil && len(kept) != 1 {
		return fmt.Errorf("there are %d of what was put", len(kept))
	}
	if err != nil {
		return err
	}
	return is(nil, string(kept[0].Value), row(s.number, nth))
}

// kept returns the pairs with keys from one key on to before another.
func (s etcdSession) kept(ctx context.Context, from, before []byte) ([]etcdPair, error) {
	content, err := json.Marshal(map[string][]byte{"key": from, "range_end": before})
	if err != nil {
		return nil, err
	}
	body, err := s.request(ctx, http.MethodPost, "/v3/kv/range", content)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Pairs []etcdPair `json:"kvs"`
	}
	err = json.Unmarshal(body, &answer)
	return answer.Pairs, err
}

// openLDAP keeps entries in LMDB, a memory-mapped database.
func openLDAP() service {
	return service{
		name: "openldap", port: 389, packages: []string{"slapd"}, every: 50 * time.Millisecond,
		setup: `
			mkdir -p /var/lib/bench
			cat >/etc/ldap/bench.conf <<-END
				include /etc/ldap/schema/core.schema
				modulepath /usr/lib/ldap
				moduleload back_mdb
				database mdb
				suffix dc=bench
				rootdn cn=admin,dc=bench
				rootpw secret
				directory /var/lib/bench
				maxsize 1073741824
				index cn eq,sub
			END
			printf 'dn: dc=bench\nobjectClass: organization\nobjectClass: dcObject\no: bench\ndc: bench\n' | slapadd -f /etc/ldap/bench.conf
			chown -R openldap:openldap /var/lib/bench /etc/ldap/bench.conf`,
		// slapd has a table of all descriptors that it may open, and Docker on Debian 13 allows a billion.
		command: []string{"sh", "-c", "ulimit -n 1024; exec slapd -d 0 -h ldap://0.0.0.0:389 " +
			"-f /etc/ldap/bench.conf -u openldap -g openldap"},
		connect: func(ctx context.Context, to address, number int) (session, error) {
			return connectLDAP(ctx, to, number)
		},
		lost: func(ctx context.Context, to address, number int, asked int64) (int64, error) {
			s, err := connectLDAP(ctx, to, number)
			if err != nil {
				return 0, err
			}
			defer s.Close()
			found, err := s.conn.Search(ldapSearch(fmt.Sprintf("(cn=%d-*)", number)))
			if err != nil {
				return 0, err
			}
			return max(0, asked-int64(len(found.Entries))), nil
		},
	}
}

type ldapSession struct {
	conn   *ldap.Conn
	number int
}

func connectLDAP(ctx context.Context, to address, number int) (ldapSession, error) {
	conn, err := to.Dial(ctx)
	if err != nil {
		return ldapSession{}, err
	}
	s := ldapSession{ldap.NewConn(conn, false), number}
	s.conn.SetTimeout(askTimeout)
	s.conn.Start()
	return s, s.conn.Bind("cn=admin,dc=bench", "secret")
}

func ldapSearch(filter string) *ldap.SearchRequest {
	return ldap.NewSearchRequest("dc=bench", ldap.ScopeWholeSubtree, ldap.NeverDerefAliases, 0, 0, false,
		filter, []string{"cn", "description"}, nil)
}

func (s ldapSession) Ask(_ context.Context, nth int64) error {
	name := fmt.Sprintf("%d-%d", s.number, nth)
	entry := ldap.NewAddRequest("cn="+name+",dc=bench", nil)
	entry.Attribute("objectClass", []string{"organizationalRole"})
	entry.Attribute("description", []string{row(s.number, nth)})
	if err := s.conn.Add(entry); err != nil && !ldap.IsErrorWithCode(err, ldap.LDAPResultEntryAlreadyExists) {
		return err
	}
	found, err := s.conn.Search(ldapSearch("(cn=" + name + ")"))
	if err == nil && len(found.Entries) != 1 {
		err = fmt.Errorf("there are %d of what was added", len(found.Entries))
	}
	if err != nil {
		return err
	}
	return is(nil, found.Entries[0].GetAttributeValue("description"), row(s.number, nth))
}

func (s ldapSession) Close() error { return s.conn.Close() }
