import java.io.IOException;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.inlong.tubemq.corebase.TErrCodeConstants;
import org.apache.inlong.tubemq.corebase.protobuf.generated.ClientMaster.AuthenticateInfo;
import org.apache.inlong.tubemq.corebase.protobuf.generated.ClientMaster.MasterCertificateInfo;
import org.apache.inlong.tubemq.corebase.rv.ProcessResult;
import org.apache.inlong.tubemq.corebase.utils.TStringUtils;
import org.apache.inlong.tubemq.server.common.aaaserver.SimpleCertificateMasterHandler;
import org.apache.inlong.tubemq.server.common.statusdef.StepStatus;
import org.apache.inlong.tubemq.server.master.MasterConfig;
import org.apache.inlong.tubemq.server.master.TMaster;
import org.apache.inlong.tubemq.server.tools.MasterStartup;

/**
 * Starts the TubeMQ Master without its two fixed delays.
 *
 * After the Broker has loaded a topic, a Master permits consumers after 30 s (wait_sub) and producers another 5 s (wait_pub) later,
 * so that consumers find a new partition before producers do. The delays are constants of an enum, without a setting, and too
 * long for tests. Nothing else is changed.
 *
 * With -Dmqbridge.users=FILE (lines of "user password") the Master also verifies the signatures of clients, with TubeMQ's own
 * function. The published Master only requires a name, a signature and a recent time; operators must add the verification.
 */
public class QuickMaster {

    public static void main(String[] args) throws Exception {
        for (String name : new String[]{"normalDelayDurIdnMs", "shortDelayDurIdnMs"}) {
            Field delay = StepStatus.class.getDeclaredField(name);
            delay.setAccessible(true);
            for (StepStatus step : StepStatus.values()) {
                delay.setLong(step, 0L);
            }
        }
        String users = System.getProperty("mqbridge.users");
        if (users == null) {
            MasterStartup.main(args);
            return;
        }
        MasterConfig config = new MasterConfig();
        config.loadFromFile(args[1]);
        TMaster master = new TMaster(config);
        Field handler = TMaster.class.getDeclaredField("serverAuthHandler");
        handler.setAccessible(true);
        handler.set(master, new Verifying(config, Path.of(users)));
        master.start();
        master.join();
    }

    private static class Verifying extends SimpleCertificateMasterHandler {

        private final MasterConfig config;
        private final Path users;

        Verifying(MasterConfig config, Path users) {
            super(config);
            this.config = config;
            this.users = users;
        }

        @Override
        public boolean identityValidUserInfo(MasterCertificateInfo info, boolean isProducer, ProcessResult result) {
            boolean wanted = isProducer ? config.isStartProduceAuthenticate() : config.isStartConsumeAuthenticate();
            if (!super.identityValidUserInfo(info, isProducer, result) || !wanted || knows(info.getAuthInfo())) {
                return result.isSuccess();
            }
            result.setFailResult(TErrCodeConstants.CERTIFICATE_FAILURE, "Illegal value: userName or password is not correct!");
            return result.isSuccess();
        }

        private boolean knows(AuthenticateInfo signed) {
            try {
                for (String line : Files.readAllLines(users)) {
                    String[] user = line.split(" ");
                    String signature = TStringUtils.getAuthSignature(user[0], user[1], signed.getTimestamp(), signed.getNonce());
                    if (user[0].equals(signed.getUserName()) && signature.equals(signed.getSignature())) {
                        return true;
                    }
                }
                return false;
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }
    }
}
