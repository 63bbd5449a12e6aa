import java.io.IOException;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.broker.out.BrokerOuterAPI;
import org.apache.rocketmq.remoting.RemotingClient;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.ha.DefaultHAService;

/**
 * Starts the RocketMQ broker with its replication port on the loopback address, and registered at once.
 *
 * The setting bindAddress covers the two ports for clients only; the third, for slaves, is opened on all interfaces, even
 * by a broker that has no slave. And the broker looks for its name servers in the background: when it has not found
 * them by the time of its first registration it leaves that out, and registers 10 s later. Everything else is the broker as
 * published.
 */
public class QuickBroker {
    private static final int LOOKS = 30;
    private static final int LOOK_MS = 100;

    public static void main(String[] args) throws Exception {
        BrokerController controller = BrokerStartup.createBrokerController(args);
        DefaultMessageStore store = (DefaultMessageStore) controller.getMessageStore();
        field(DefaultMessageStore.class, "haService").set(store, new LoopbackHAService());
        BrokerStartup.start(controller);
        register(controller);
    }

    private static void register(BrokerController controller) throws Exception {
        int wanted = controller.getBrokerConfig().getNamesrvAddr().split(";").length;
        RemotingClient client = (RemotingClient) field(BrokerOuterAPI.class, "remotingClient").get(controller.getBrokerOuterAPI());
        for (int look = 0; look < LOOKS && client.getAvailableNameSrvList().size() < wanted; look++) {
            Thread.sleep(LOOK_MS);
        }
        controller.registerBrokerAll(true, false, true);
    }

    private static Field field(Class<?> owner, String name) throws NoSuchFieldException {
        Field field = owner.getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }

    /** Called by the store when it starts, before the port is opened. */
    static class LoopbackHAService extends DefaultHAService {

        @Override
        public void init(DefaultMessageStore store) throws IOException {
            super.init(store);
            int port = store.getMessageStoreConfig().getHaListenPort();
            try {
                field(AcceptSocketService.class, "socketAddressListen")
                        .set(acceptSocketService, new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
            } catch (ReflectiveOperationException changed) {
                throw new IOException("this broker is not built as 5.3.3 is", changed);
            }
        }
    }
}
