package services

// These services count the requests for each path, with typical uses of their runtimes.

func node() service {
	return service{
		name: "node", port: 80, packages: []string{"nodejs"},
		programs: map[string]program{"/srv/server.js": source("server.js")},
		command:  []string{"node", "/srv/server.js"}, connect: counted("http"),
	}
}

// jvm is a JVM with a garbage collector.
func jvm(name string, flags ...string) service {
	command := append([]string{"java", "-Xms64m", "-Xmx256m"}, flags...)
	return service{
		name: name, port: 80, packages: []string{"openjdk-17-jdk-headless"},
		programs: map[string]program{"/srv/Server.java": source("Server.java")},
		command:  append(command, "/srv/Server.java"), connect: counted("http"),
	}
}

func multiprocessing() service {
	return service{
		name: "python-multiprocessing", port: 80, packages: []string{"python3"},
		programs: map[string]program{"/srv/pool.py": source("pool.py")},
		command:  []string{"python3", "/srv/pool.py"}, connect: counted("http"),
	}
}

func puma() service {
	return service{
		name: "puma", port: 80, packages: []string{"puma"},
		programs: map[string]program{"/srv/config.ru": source("config.ru")},
		command: []string{"puma", "--environment", "production", "--bind", "tcp://0.0.0.0:80", "--threads",
			"8:8", "/srv/config.ru"},
		flags: []string{"--workdir", "/srv"}, connect: counted("http"),
	}
}

func phpFPM() service {
	return service{
		name: "php-fpm", port: 80, packages: []string{"php-fpm", "nginx"},
		programs: map[string]program{"/srv/index.php": source("index.php"),
			"/etc/nginx/sites-enabled/default": source("php.conf")},
		setup:   `rm /etc/nginx/sites-enabled/default && install --directory --owner=www-data /run/php`,
		command: []string{"sh", "-c", `php-fpm8.2 && exec nginx -g "daemon off;"`}, connect: counted("http"),
	}
}

// apache has a process for each connection, with PHP in it.
func apache() service {
	return service{
		name: "apache-prefork", port: 80, packages: []string{"apache2", "libapache2-mod-php"},
		programs: map[string]program{"/srv/index.php": source("index.php")},
		setup: `
			mkdir -p /run/apache2 /run/lock/apache2
			cat >/etc/apache2/sites-enabled/000-default.conf <<-END
				ServerName service
				MaxKeepAliveRequests 0
				KeepAliveTimeout 600
				DocumentRoot /srv
				FallbackResource /index.php
				<Directory /srv>
					Require all granted
				</Directory>
			END`,
		command: []string{"sh", "-c", ". /etc/apache2/envvars && exec apache2 -DFOREGROUND"},
		connect: counted("http"),
	}
}

func haproxy() service {
	return service{
		name: "haproxy", port: 80, packages: []string{"haproxy"},
		programs: map[string]program{"/etc/haproxy/bench.cfg": source("haproxy.cfg")},
		command:  []string{"haproxy", "-W", "-db", "-f", "/etc/haproxy/bench.cfg"}, connect: counted("http"),
	}
}

func rustTokio() service {
	return service{
		name: "rust-tokio", port: 80, programs: map[string]program{"/usr/local/bin/counting": crate("tokio")},
		command: []string{"counting"}, connect: counted("http"),
	}
}
