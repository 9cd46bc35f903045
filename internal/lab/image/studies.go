package image

import (
	_ "embed" // the sources of what runs in the images
	"maps"
	"runtime"
	"slices"
	"strings"
)

//go:embed sources/coap/Server.java
var coapServer string

//go:embed sources/recogniser/server.py
var recogniserServer string

//go:embed sources/broker/rabbitmq.conf
var brokerConfig string

// VideoPath is the path of the film in the image "video", below the root of its server.
const VideoPath = "film.mp4"

// VideoSeconds is the length of the film, which has a constant bit rate.
const VideoSeconds = 150

// studies are the workloads of the studies with which Godwit is compared. Most of them need hundreds of
// megabytes.
func studies() map[string]recipe {
	return map[string]recipe{
		"system":     system(),
		"blank":      blank(),
		"coap":       coap(),
		"recogniser": recogniser(),
		"video":      video(),
		"broker":     broker(),
	}
}

// Small lists the images that can be made in seconds.
func Small() []string {
	return slices.DeleteFunc(Names(), func(name string) bool { return recipes()[name].heavy })
}

// system is a container with an init, like a container of LXC: it has services, and restarts those that
// end.
func system() recipe {
	return recipe{
		Layers: []layerRecipe{tools(), {
			Name: "system", Files: map[string]string{"etc/inittab": inittab},
			Dirs: map[string]int64{"var/spool": 0o755, "var/spool/cron": 0o755,
				"var/spool/cron/crontabs": 0o755, "srv": 0o755},
		}},
		Config: config{Env: []string{searchPath}, Cmd: []string{"init"}, StopSignal: "SIGTERM",
			ExposedPorts: ports("80/tcp")},
	}
}

const inittab = `::respawn:/usr/bin/syslogd -n -O /var/log/messages
::respawn:/usr/bin/crond -f
::respawn:/usr/bin/httpd -f -p 80 -h /srv
::respawn:/bin/sh -c 'while :; do date +%s >/srv/.clock; mv /srv/.clock /srv/clock; sleep 1; done'
::shutdown:/bin/true
`

// blank is study C's container that serves nothing: the same, with a file system of 350 MB.
func blank() recipe {
	r := system()
	r.Layers = append(r.Layers, layerRecipe{Name: "blank", Bulk: 350e6})
	r.heavy = true
	return r
}

// coap is study B's server: Eclipse Californium, with 75 MB of random data. Each POST changes some of the
// data.
func coap() recipe {
	jars := map[string]download{
		"app/californium-core.jar": maven(
			"org/eclipse/californium/californium-core/3.14.0/californium-core-3.14.0.jar",
			"dfd4c0b97dfe716ba285f310e6d9c8958cc8c78813d541fbcb9b9643a494a5a3"),
		"app/element-connector.jar": maven(
			"org/eclipse/californium/element-connector/3.14.0/element-connector-3.14.0.jar",
			"03edf864dacd068e08f844d4fab0f9467ae4a28a8532c85d5bbd66d8cb93950c"),
		"app/slf4j-api.jar": maven("org/slf4j/slf4j-api/2.0.19/slf4j-api-2.0.19.jar",
			"e91ff6d720609e7a194ffe758c3ed5c84e798617ae07b0a0f6a4fe229741b4bb"),
		"app/slf4j-nop.jar": maven("org/slf4j/slf4j-nop/2.0.19/slf4j-nop-2.0.19.jar",
			"d0226062f9b3a2793f62002f892a8e624eb07f396130fc949e01b1d5f4888cba"),
	}
	compiler := maps.Clone(jars)
	for name, d := range jars {
		delete(compiler, name)
		compiler["tmp/"+name[len("app/"):]] = d
	}
	compiler["tmp/ecj.jar"] = maven("org/eclipse/jdt/ecj/3.45.0/ecj-3.45.0.jar",
		"c8f5e66787ea6e4e0394ba3051c86a4edc50683ce9850f71739646529a99a2d7")
	java := javaHome() + "/bin/java"
	return recipe{
		heavy: true,
		Layers: []layerRecipe{tools(), libraries(), javaLayer(), {
			Name: "coap", Downloads: jars, Dirs: map[string]int64{"app": 0o755},
			Made: []making{{
				Packages: []string{"openjdk-17-jre-headless"}, Downloads: compiler,
				Files: map[string]string{"tmp/Server.java": coapServer, jvmConfig: jvmConfigText},
				Command: []string{
					java, "-jar", "/tmp/ecj.jar", "--release", "17", "-classpath",
					"/tmp/californium-core.jar:/tmp/element-connector.jar",
					"-d", "/tmp/classes", "/tmp/Server.java",
				},
				Outputs: map[string]string{"app/Server.class": "tmp/classes/Server.class"},
			}},
		}},
		Config: config{
			Env: []string{searchPath}, WorkingDir: "/app", ExposedPorts: ports("5683/udp"),
			// The heap is as small as the data allows, as on the study's Raspberry Pi. The JVM's own
			// counters for jps are in a mapped file: nobody reads them here.
			Cmd: []string{
				java, "-Xms92m", "-Xmx112m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
				"-XX:-UsePerfData",
				"-Djava.net.preferIPv4Stack=true", "-cp", "/app:/app/*", "Server", "75",
			},
		},
	}
}

func maven(path, digest string) download {
	return download{"https://repo1.maven.org/maven2/" + path, digest}
}

// jvmConfig is made by the package's installation: it names the kind of virtual machine.
const jvmConfig = "etc/java-17-openjdk/jvm-" + runtime.GOARCH + ".cfg"

const jvmConfigText = "-server KNOWN\n-client IGNORE\n"

func javaHome() string { return "/usr/lib/jvm/java-17-openjdk-" + runtime.GOARCH }

func javaLayer() layerRecipe {
	return layerRecipe{Name: "java", Packages: []string{"openjdk-17-jre-headless"},
		Files: map[string]string{jvmConfig: jvmConfigText}}
}

// recogniser plays the role of study A's OpenFace: it receives pictures of a camera, and answers whose face
// is in them.
func recogniser() recipe {
	return recipe{
		heavy: true,
		Layers: []layerRecipe{
			tools(), libraries(), {Name: "opencv", Packages: []string{"python3-opencv", "opencv-data"}},
			{Name: "recogniser", Files: map[string]string{"app/server.py": recogniserServer},
				Dirs: map[string]int64{"app": 0o755}},
		},
		Config: config{
			Env: []string{searchPath, librarySearchPath(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1",
				"HOME=/tmp", "OPENBLAS_NUM_THREADS=1"},
			Cmd: []string{"python3", "/app/server.py"}, ExposedPorts: ports("7001/tcp"),
		},
	}
}

// librarySearchPath lists the directories of libraries to which a package's installation makes links.
func librarySearchPath() string {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	var dirs []string
	for _, name := range []string{"blas", "lapack", "pulseaudio"} {
		dirs = append(dirs, "/usr/lib/"+triplet+"/"+name)
	}
	return "LD_LIBRARY_PATH=" + strings.Join(dirs, ":")
}

// video is study C's: NGINX with a film of 93.5 MB, H.264, 720p, in a file system of 590 MB.
//
// Its processes stay root's: CRIU cannot read the limits of other users' processes on a machine without
// CAP_SYS_RESOURCE.
func video() recipe {
	server := nginxLayer()
	server.Files = map[string]string{"etc/nginx/nginx.conf": strings.Replace(nginxConfig, "user www-data;",
		"user root;", 1)}
	return recipe{
		heavy: true,
		Layers: []layerRecipe{
			tools(), libraries(), server, {Name: "blank", Bulk: 480e6},
			{Name: "video", Made: []making{{
				Packages: []string{"ffmpeg"},
				Command: []string{
					"ffmpeg", "-loglevel", "error", "-f", "lavfi", "-i", "testsrc2=size=1280x720:rate=25",
					"-t", "150", "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-threads",
					"2",
					"-b:v", "4980k", "-minrate", "4980k", "-maxrate", "4980k", "-bufsize", "4980k",
					"-x264-params", "nal-hrd=cbr",
					"-movflags", "+faststart", "/tmp/film.mp4",
				},
				Outputs: map[string]string{"usr/share/nginx/html/" + VideoPath: "tmp/film.mp4"},
			}}},
		},
		Config: nginxRun(),
	}
}

// broker is study D's RabbitMQ. Its persistent data is in its volume.
func broker() recipe {
	return recipe{
		heavy: true,
		Layers: []layerRecipe{tools(), libraries(), {
			Name: "broker", Packages: []string{"rabbitmq-server"},
			Dirs: map[string]int64{"etc/rabbitmq": 0o755, "var/lib/rabbitmq": 0o755,
				"var/log/rabbitmq": 0o755},
			Files: map[string]string{"etc/rabbitmq/rabbitmq.conf": brokerConfig},
		}},
		Config: config{
			Env: []string{
				searchPath, "HOME=/var/lib/rabbitmq", "LC_ALL=C.UTF-8", "RABBITMQ_NODENAME=rabbit@localhost",
				"RABBITMQ_LOGS=-",
				"ERL_EPMD_ADDRESS=127.0.0.1",
				"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
			},
			Cmd: []string{"/usr/lib/rabbitmq/bin/rabbitmq-server"}, ExposedPorts: ports("5672/tcp"),
		},
	}
}

func ports(names ...string) map[string]struct{} {
	all := map[string]struct{}{}
	for _, name := range names {
		all[name] = struct{}{}
	}
	return all
}
