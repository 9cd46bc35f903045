import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

/** Answers how often each path was asked for. Another thread makes garbage, so that the collector is always at work. */
public class Server {
  public static void main(String[] arguments) throws Exception {
    var asked = new ConcurrentHashMap<String, AtomicLong>();
    var server = HttpServer.create(new InetSocketAddress(80), 100);
    server.setExecutor(Executors.newFixedThreadPool(8));
    server.createContext("/", exchange -> {
      var path = exchange.getRequestURI().getPath();
      long n = asked.computeIfAbsent(path, key -> new AtomicLong()).incrementAndGet();
      var answer = (path + " " + n + "\n").getBytes(StandardCharsets.UTF_8);
      exchange.getRequestBody().readAllBytes();
      exchange.sendResponseHeaders(200, answer.length);
      try (var body = exchange.getResponseBody()) {
        body.write(answer);
      }
    });
    server.start();
    var kept = new byte[512][];
    for (int i = 0; ; i++) {
      kept[i % kept.length] = new byte[64 << 10];
      if (i % 8 == 0) {
        Thread.sleep(2);
      }
    }
  }
}
