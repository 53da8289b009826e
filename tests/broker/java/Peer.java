import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * The Java client at the other end of a pipe. A line is a command, its words parted by tabs; the answer is lines of
 * words and then "ok", or "error" and why. Bytes and texts are in base64.
 */
public final class Peer {
    private static final Base64.Encoder TO_TEXT = Base64.getEncoder();
    private static final Base64.Decoder FROM_TEXT = Base64.getDecoder();

    private final PulsarClient client;
    private final Map<String, Producer<byte[]>> producers = new HashMap<>();
    private final Map<String, List<CompletableFuture<MessageId>>> sent = new HashMap<>();
    private final Map<String, Consumer<byte[]>> consumers = new HashMap<>();
    private final StringBuilder answer = new StringBuilder();

    private Peer(PulsarClient client) {
        this.client = client;
    }

    public static void main(String[] urls) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(urls[0]).build()) {
            Peer peer = new Peer(client);
            BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                peer.answer.setLength(0);
                try {
                    peer.run(line.split("\t", -1));
                    peer.say("ok");
                } catch (Exception error) {
                    peer.say("error", error.toString().replace('\n', ' '));
                }
                System.out.print(peer.answer);
                System.out.flush();
            }
        }
    }

    private void run(String[] words) throws Exception {
        String name = words[1];
        switch (words[0]) {
            case "producer" -> producer(name, words[2], options(words, 3));
            case "send" -> send(name, FROM_TEXT.decode(words[2]), options(words, 3));
            case "flush" -> flush(name);
            case "consumer" -> consumer(name, words[2], words[3], words[4]);
            case "giving_up" -> givingUp(name, words[2], words[3], Integer.parseInt(words[4]));
            case "retrying" -> retrying(name, words[2], words[3], Integer.parseInt(words[4]));
            case "reconsume" -> reconsume(name, Integer.parseInt(words[2]), Long.parseLong(words[3]), words[4]);
            case "nack" -> nack(name, Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            case "receive" -> receive(name, Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            case "close" -> close(name);
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private void producer(String name, String topic, Map<String, String> options) throws Exception {
        boolean isBatched = Boolean.parseBoolean(options.get("batching"));
        ProducerBuilder<byte[]> builder = client.newProducer()
                .topic(topic)
                .enableBatching(isBatched)
                .batchingMaxPublishDelay(50, TimeUnit.MILLISECONDS)
                .blockIfQueueFull(true)
                .compressionType(CompressionType.valueOf(options.getOrDefault("compression", "NONE")))
                .enableChunking(Boolean.parseBoolean(options.get("chunking")));
        if (Boolean.parseBoolean(options.get("batch_by_key"))) {
            builder.batcherBuilder(BatcherBuilder.KEY_BASED);
        }
        producers.put(name, builder.create());
        sent.put(name, new ArrayList<>());
    }

    private void send(String name, byte[] payload, Map<String, String> options) {
        TypedMessageBuilder<byte[]> message = producers.get(name).newMessage().value(payload);
        options.forEach((option, value) -> {
            switch (option) {
                case "key_bytes" -> message.keyBytes(FROM_TEXT.decode(value));
                case "key" -> message.key(text(value));
                case "ordering_key" -> message.orderingKey(FROM_TEXT.decode(value));
                case "event_time_ms" -> message.eventTime(Long.parseLong(value));
                case "deliver_after_ms" -> message.deliverAfter(Long.parseLong(value), TimeUnit.MILLISECONDS);
                default -> message.property(option.substring(1), text(value));
            }
        });
        sent.get(name).add(message.sendAsync());
    }

    private void flush(String name) throws Exception {
        producers.get(name).flush();
        for (CompletableFuture<MessageId> each : sent.get(name)) {
            say("id", id(each.get(30, TimeUnit.SECONDS)));
        }
        sent.get(name).clear();
    }

    private void consumer(String name, String topic, String subscription, String type) throws Exception {
        consumers.put(name, client.newConsumer()
                .topic(topic)
                .subscriptionName(subscription)
                .subscriptionType(SubscriptionType.valueOf(type))
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .enableBatchIndexAcknowledgment(true)
                .subscribe());
    }

    private void givingUp(String name, String topic, String subscription, int maxRedeliveries) throws Exception {
        consumers.put(name, client.newConsumer()
                .topic(topic)
                .subscriptionName(subscription)
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(maxRedeliveries).build())
                .subscribe());
    }

    private void retrying(String name, String topic, String subscription, int maxRedeliveries) throws Exception {
        consumers.put(name, client.newConsumer()
                .topic(topic)
                .subscriptionName(subscription)
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .enableRetry(true)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(maxRedeliveries).build())
                .subscribe());
    }

    private void reconsume(String name, int most, long delayMs, String patienceMs) throws Exception {
        Consumer<byte[]> consumer = consumers.get(name);
        for (int number = 0; number < most; number++) {
            Message<byte[]> message = consumer.receive(Integer.parseInt(patienceMs), TimeUnit.MILLISECONDS);
            if (message == null) {
                return;
            }
            say("reconsumed", id(message.getMessageId()), message.getTopicName());
            consumer.reconsumeLater(message, delayMs, TimeUnit.MILLISECONDS);
        }
    }

    private void nack(String name, int most, int patienceMs) throws Exception {
        Consumer<byte[]> consumer = consumers.get(name);
        for (int number = 0; number < most; number++) {
            Message<byte[]> message = consumer.receive(patienceMs, TimeUnit.MILLISECONDS);
            if (message == null) {
                return;
            }
            say("nacked", id(message.getMessageId()));
            consumer.negativeAcknowledge(message);
        }
    }

    private void receive(String name, int most, int patienceMs) throws Exception {
        Consumer<byte[]> consumer = consumers.get(name);
        for (int number = 0; number < most; number++) {
            Message<byte[]> message = consumer.receive(patienceMs, TimeUnit.MILLISECONDS);
            if (message == null) {
                return;
            }
            StringBuilder properties = new StringBuilder();
            message.getProperties().forEach((key, value) ->
                    properties.append(encoded(key)).append(':').append(encoded(value)).append(' '));
            say("message", id(message.getMessageId()), TO_TEXT.encodeToString(message.getValue()),
                    message.hasKey() ? "=" + encoded(message.getKey()) : "",
                    message.hasOrderingKey() ? "=" + TO_TEXT.encodeToString(message.getOrderingKey()) : "",
                    Long.toString(message.getEventTime()), properties.toString(),
                    message.hasBase64EncodedKey() ? "bytes" : "text");
            consumer.acknowledgeAsync(message).get(30, TimeUnit.SECONDS);
        }
    }

    private void close(String name) throws Exception {
        if (producers.containsKey(name)) {
            producers.remove(name).close();
        }
        if (consumers.containsKey(name)) {
            consumers.remove(name).close();
        }
    }

    private void say(String... words) {
        answer.append(String.join("\t", words)).append('\n');
    }

    private static String id(MessageId id) {
        MessageIdAdv about = (MessageIdAdv) id;
        return about.getLedgerId() + ":" + about.getEntryId() + ":" + about.getPartitionIndex() + ":"
                + about.getBatchIndex();
    }

    private static Map<String, String> options(String[] words, int from) {
        Map<String, String> options = new HashMap<>();
        for (int at = from; at < words.length; at++) {
            String[] parts = words[at].split("=", 2);
            options.put(parts[0], parts[1]);
        }
        return options;
    }

    private static String encoded(String text) {
        return TO_TEXT.encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String text(String encoded) {
        return new String(FROM_TEXT.decode(encoded), StandardCharsets.UTF_8);
    }
}
