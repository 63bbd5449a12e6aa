import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.Arrays;
import io.netty.bootstrap.ServerBootstrap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * Starts a name server or a broker of RocketMQ 4.9 with all ports on the loopback address, for which 4.9 has no setting.
 *
 * The first argument is `namesrv` or `broker`, the others are those of the server. Nothing else is changed.
 */
public class OldServers {

    public static void main(String[] args) throws Exception {
        String[] own = Arrays.copyOfRange(args, 1, args.length);
        if (args[0].equals("namesrv")) {
            NamesrvController controller = NamesrvStartup.createNamesrvController(own);
            controller.initialize();
            keepInside(controller, "remotingServer");
            controller.start();
        } else {
            BrokerController controller = BrokerStartup.createBrokerController(own);
            keepInside(controller, "remotingServer");
            keepInside(controller, "fastRemotingServer");
            keepReplicationInside((DefaultMessageStore) controller.getMessageStore());
            BrokerStartup.start(controller);
        }
    }

    private static void keepInside(Object controller, String server) throws Exception {
        Object remoting = field(controller, server).get(controller);
        field(remoting, "serverBootstrap").set(remoting, new LoopbackBootstrap());
    }

    private static void keepReplicationInside(DefaultMessageStore store) throws Exception {
        Object service = field(store, "haService").get(store);
        Object accepting = field(service, "acceptSocketService").get(service);
        int port = store.getMessageStoreConfig().getHaListenPort();
        field(accepting, "socketAddressListen").set(accepting, new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
    }

    private static Field field(Object owner, String name) throws NoSuchFieldException {
        Field field = owner.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }

    /** The server gives it its port only when it starts. */
    static class LoopbackBootstrap extends ServerBootstrap {

        @Override
        public ServerBootstrap localAddress(SocketAddress address) {
            int port = ((InetSocketAddress) address).getPort();
            return super.localAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        }
    }
}
