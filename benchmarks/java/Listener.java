import java.lang.management.ManagementFactory;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionType;

/** A message listener of the Java client that acknowledges each message; prints the rate, and us of CPU a message. */
public final class Listener {
    public static void main(String[] words) throws Exception {
        String topic = words[1];
        String subscription = words[2];
        long count = Long.parseLong(words[3]);
        long warm = count / 10;
        AtomicLong left = new AtomicLong(count);
        AtomicLong beganAt = new AtomicLong();
        AtomicLong beganCpu = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        com.sun.management.OperatingSystemMXBean machine =
                (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        try (PulsarClient client = PulsarClient.builder().serviceUrl(words[0]).build()) {
            Consumer<byte[]> consumer = client.newConsumer()
                    .topic(topic)
                    .subscriptionName(subscription)
                    .subscriptionType(SubscriptionType.Shared)
                    .receiverQueueSize(1_000)
                    .messageListener((from, message) -> {
                        from.acknowledgeAsync(message);
                        long rest = left.decrementAndGet();
                        if (rest == count - warm) {
                            beganCpu.set(machine.getProcessCpuTime());
                            beganAt.set(System.nanoTime());
                        } else if (rest == 0) {
                            done.countDown();
                        }
                    })
                    .subscribe();
            done.await();
            double seconds = (System.nanoTime() - beganAt.get()) / 1e9;
            double cpu = (machine.getProcessCpuTime() - beganCpu.get()) / 1e9;
            consumer.close();
            System.out.println((count - warm) / seconds + " " + 1e6 * cpu / (count - warm));
        }
        System.exit(0);
    }
}
