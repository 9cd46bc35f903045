// Program tlsserver is an ordinary server in Go: HTTP/1.1 and HTTP/2 over TLS, with session tickets. It
// answers with the number of a client's requests, and listens as Go does by default, with MPTCP where the
// kernel has it.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"math/big"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().AddDate(1, 0, 0),
		DNSNames: []string{"service"}}
	certificate, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		log.Fatal(err)
	}
	var mu sync.Mutex
	asked := map[int]int{}
	server := http.Server{
		Addr: ":443", ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12,
			Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			number, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
			if err != nil {
				http.NotFound(w, r)
				return
			}
			mu.Lock()
			asked[number]++
			n := asked[number]
			mu.Unlock()
			fmt.Fprintf(w, "/%d %d\n", number, n)
		}),
	}
	log.Fatal(server.ListenAndServeTLS("", ""))
}
