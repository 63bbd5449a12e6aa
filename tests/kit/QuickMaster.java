import java.lang.reflect.Field;
import org.apache.inlong.tubemq.server.common.statusdef.StepStatus;
import org.apache.inlong.tubemq.server.tools.MasterStartup;

/**
 * Starts the TubeMQ Master with its two fixed waits cut short.
 *
 * A Master opens a topic 30 s (wait_sub) and then 5 s (wait_pub) after the Broker has loaded it, so that consumers find a
 * new partition before producers do. The delays are constants of an enum that no setting reaches. Tests cannot wait
 * 35 s for a topic; everything else is the Master as published.
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
        MasterStartup.main(args);
    }
}
