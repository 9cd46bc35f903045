package services

// traefik is a proxy in Go before a server in Go: both listen with MPTCP.
func traefik() service {
	return service{
		name: "traefik", port: 80,
		programs: map[string]program{
			"/usr/local/bin/traefik":   goModule{"github.com/traefik/traefik/v3@v3.6.12", "cmd/traefik"},
			"/usr/local/bin/tlsserver": goSource("tlsserver"),
			"/etc/traefik/traefik.yml": source("traefik.yml"),
			"/etc/traefik/routes.yml":  source("routes.yml"),
		},
		command: []string{"sh", "-c", "tlsserver & exec traefik"}, connect: counted("https"),
	}
}
