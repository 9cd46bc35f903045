import java.util.SplittableRandom;
import java.util.zip.CRC32;
import org.eclipse.californium.core.CoapResource;
import org.eclipse.californium.core.CoapServer;
import org.eclipse.californium.core.coap.CoAP.ResponseCode;
import org.eclipse.californium.core.config.CoapConfig;
import org.eclipse.californium.core.server.resources.CoapExchange;
import org.eclipse.californium.elements.config.Configuration;
import org.eclipse.californium.elements.config.UdpConfig;

/**
 * The server of Puliafito et al. (Sensors 2019): it holds random data, and each POST changes so many kilobytes of them. It
 * knows what each kilobyte must be.
 *
 * <p>POST /data KILOBYTES answers how many POSTs there were; GET /data the same; GET /check how many POSTs there were, how
 * many kilobytes it has, and how many of them are wrong.
 */
public final class Server extends CoapResource {
    private static final int KILOBYTE = 1000;
    private static final int PER_BLOCK = 1000; // kilobytes in an array
    private static byte[][] blocks;
    private static long[] sums; // of each kilobyte
    private static final SplittableRandom random = new SplittableRandom(1);
    private static int next; // kilobyte
    private static long posts;

    private static void fill(int kilobyte) {
        byte[] content = new byte[KILOBYTE];
        random.nextBytes(content);
        System.arraycopy(content, 0, blocks[kilobyte / PER_BLOCK], kilobyte % PER_BLOCK * KILOBYTE, KILOBYTE);
        sums[kilobyte] = sum(kilobyte);
    }

    private static long sum(int kilobyte) {
        CRC32 crc = new CRC32();
        crc.update(blocks[kilobyte / PER_BLOCK], kilobyte % PER_BLOCK * KILOBYTE, KILOBYTE);
        return crc.getValue();
    }

    private static synchronized String change(int kilobytes) {
        for (int i = 0; i < kilobytes; i++) {
            fill(next);
            next = (next + 1) % sums.length;
        }
        posts++;
        return Long.toString(posts);
    }

    private static synchronized String count() {
        return Long.toString(posts);
    }

    private static synchronized String check() {
        int wrong = 0;
        for (int i = 0; i < sums.length; i++) {
            if (sum(i) != sums[i]) {
                wrong++;
            }
        }
        return posts + " " + sums.length + " " + wrong;
    }

    private Server(String name) {
        super(name);
    }

    @Override
    public void handleGET(CoapExchange exchange) {
        exchange.respond(getName().equals("check") ? check() : count());
    }

    @Override
    public void handlePOST(CoapExchange exchange) {
        exchange.respond(ResponseCode.CHANGED, change(Integer.parseInt(exchange.getRequestText())));
    }

    public static void main(String[] args) {
        int megabytes = Integer.parseInt(args[0]);
        blocks = new byte[megabytes][PER_BLOCK * KILOBYTE];
        sums = new long[megabytes * PER_BLOCK];
        for (int i = 0; i < sums.length; i++) {
            fill(i);
        }
        CoapConfig.register();
        UdpConfig.register();
        Configuration configuration = Configuration.createStandardWithoutFile();
        configuration.set(CoapConfig.PROTOCOL_STAGE_THREAD_COUNT, 1);
        configuration.set(UdpConfig.UDP_RECEIVER_THREAD_COUNT, 1);
        configuration.set(UdpConfig.UDP_SENDER_THREAD_COUNT, 1);
        CoapServer server = new CoapServer(configuration, 5683);
        server.add(new Server("data"), new Server("check"));
        server.start();
        System.out.println("ready");
    }
}
