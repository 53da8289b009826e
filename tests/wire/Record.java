import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;

/** What record.py has Java's client say to a broker. */
public class Record {
    static final byte[] TEXT = "some words, and then some words again. ".repeat(4).getBytes(StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        byte[] publicKey = Files.readAllBytes(Path.of(arguments[1]));
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (CompressionType kind : CompressionType.values()) {
                for (boolean isBatched : new boolean[] {false, true}) {
                    exchange(client, "java-" + kind + "-" + isBatched, kind, isBatched);
                }
            }
            chunks(client);
            encrypted(client, publicKey);
        }
    }

    static Consumer<byte[]> consumer(PulsarClient client, String topic) throws Exception {
        return client.newConsumer().topic(topic).subscriptionName("all").subscriptionType(SubscriptionType.Key_Shared)
            .enableBatchIndexAcknowledgment(true).isAckReceiptEnabled(true).properties(Map.of("p", "q"))
            .subscriptionProperties(Map.of("s", "t")).priorityLevel(1).consumerName("java")
            .cryptoFailureAction(ConsumerCryptoFailureAction.CONSUME)
            .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe();
    }

    static void exchange(PulsarClient client, String topic, CompressionType kind, boolean isBatched) throws Exception {
        Consumer<byte[]> consumer = consumer(client, topic);
        Producer<byte[]> producer = client.newProducer().topic(topic).compressionType(kind).enableBatching(isBatched)
            .loadConf(Map.of("compressMinMsgBodySize", 0))
            .batchingMaxPublishDelay(50, TimeUnit.MILLISECONDS).create();
        producer.newMessage().value(TEXT).keyBytes(new byte[] {1, (byte) 255}).property("a", "1").eventTime(1234).sendAsync();
        producer.newMessage().value(TEXT).orderingKey(new byte[] {(byte) 255, 2}).sendAsync();
        producer.newMessage().value(null).key("key").sendAsync();
        producer.flush();
        producer.newMessage().value(TEXT).deliverAfter(1, TimeUnit.MILLISECONDS).send();
        consumer.negativeAcknowledge(consumer.receive(5, TimeUnit.SECONDS));
        for (int count = 0; count < 4; count++) {
            consumer.acknowledge(consumer.receive(5, TimeUnit.SECONDS));
        }
        consumer.seek(MessageId.earliest);
        consumer.getLastMessageIds();
        consumer.seek(System.currentTimeMillis());
        producer.close();
        consumer.unsubscribe();
    }

    static void chunks(PulsarClient client) throws Exception {
        Consumer<byte[]> consumer = consumer(client, "java-chunks");
        Producer<byte[]> producer = client.newProducer().topic("java-chunks").enableBatching(false).enableChunking(true)
            .chunkMaxMessageSize(60).loadConf(Map.of("compressMinMsgBodySize", 0)).compressionType(CompressionType.ZLIB).create();
        producer.send(new java.util.Random(1).ints(200, 0, 256).collect(
            java.io.ByteArrayOutputStream::new, java.io.ByteArrayOutputStream::write, (one, two) -> { }).toByteArray());
        consumer.acknowledge(consumer.receive(5, TimeUnit.SECONDS));
        consumer.close();
    }

    static void encrypted(PulsarClient client, byte[] publicKey) throws Exception {
        CryptoKeyReader reader = new CryptoKeyReader() {
            public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
                return new EncryptionKeyInfo(publicKey, Map.of("kind", "test"));
            }
            public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
                throw new IllegalStateException("not here");
            }
        };
        for (boolean isBatched : new boolean[] {false, true}) {
            String topic = "java-encrypted-" + isBatched;
            Consumer<byte[]> consumer = consumer(client, topic);
            Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(isBatched)
                .cryptoKeyReader(reader).addEncryptionKey("ours").create();
            producer.sendAsync(TEXT);
            producer.flush();
            consumer.receive(5, TimeUnit.SECONDS);
            consumer.close();
        }
    }
}
