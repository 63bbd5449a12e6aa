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
 * Starts the RocketMQ broker with its replication port on the loopback address, and registers it without delay.
 *
 * The setting bindAddress applies only to the two ports for clients. The port for slaves is opened on all interfaces, even if the
 * broker has no slave. The broker connects to its name servers in the background. If it is not connected when it should register
 * for the first time, it skips this and registers 10 s later. Nothing else is changed.
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
