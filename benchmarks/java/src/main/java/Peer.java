import it.unimi.dsi.fastutil.longs.Long2ObjectAVLTreeMap;
import it.unimi.dsi.fastutil.longs.Long2ObjectMap;
import it.unimi.dsi.fastutil.longs.Long2ObjectOpenHashMap;
import it.unimi.dsi.fastutil.longs.Long2ObjectSortedMap;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.List;
import org.roaringbitmap.longlong.LongConsumer;
import org.roaringbitmap.longlong.LongIterator;
import org.roaringbitmap.longlong.Roaring64Bitmap;

/**
 * Measures the structure that the proposals describe: sorted time buckets, ledgers, bitmaps of entries.
 *
 * <p>Arguments: a stream's name (or messages a ms), how many, bits of a bucket, rounds. Prints "name value" lines; times
 * are ns per id, the best of the rounds.
 */
public final class Peer {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static volatile long sink;

    private final Long2ObjectSortedMap<Long2ObjectMap<Roaring64Bitmap>> buckets = new Long2ObjectAVLTreeMap<>();

    record Id(long ledger, long entry, int partition) {}

    void add(long ledger, long entry, long start) {
        Long2ObjectMap<Roaring64Bitmap> bucket = buckets.get(start);
        if (bucket == null) {
            bucket = new Long2ObjectOpenHashMap<>();
            buckets.put(start, bucket);
        }
        Roaring64Bitmap entries = bucket.get(ledger);
        if (entries == null) {
            entries = new Roaring64Bitmap();
            bucket.put(ledger, entries);
        }
        entries.addLong(entry);
    }

    /** Takes out what is due; gives how many, and the sum of a hash of each id, so that nothing is optimized away. */
    long[] drain(long now, boolean isHashed) {
        Summer summer = new Summer(isHashed);
        while (!buckets.isEmpty() && buckets.firstLongKey() <= now) {
            for (Long2ObjectMap.Entry<Roaring64Bitmap> part : buckets.remove(buckets.firstLongKey()).long2ObjectEntrySet()) {
                summer.ledger = part.getLongKey();
                part.getValue().forEach(summer);
            }
        }
        return new long[] {summer.count, summer.sum};
    }

    private static final class Summer implements LongConsumer {
        private final boolean isHashed;
        private long ledger;
        private long count;
        private long sum;

        Summer(boolean isHashed) {
            this.isHashed = isHashed;
        }

        @Override
        public void accept(long entry) {
            count++;
            sum += isHashed ? mix(ledger, entry) : ledger ^ entry;
        }
    }

    List<Id> drainObjects(long now) {
        List<Id> due = new ArrayList<>();
        while (!buckets.isEmpty() && buckets.firstLongKey() <= now) {
            for (Long2ObjectMap.Entry<Roaring64Bitmap> part : buckets.remove(buckets.firstLongKey()).long2ObjectEntrySet()) {
                long ledger = part.getLongKey();
                LongIterator entries = part.getValue().getLongIterator();
                while (entries.hasNext()) {
                    due.add(new Id(ledger, entries.next(), -1));
                }
            }
        }
        return due;
    }

    void runOptimize() {
        buckets.values().forEach(bucket -> bucket.values().forEach(Roaring64Bitmap::runOptimize));
    }

    long serializedBytes() {
        return buckets.values().stream()
                .mapToLong(bucket -> bucket.values().stream().mapToLong(Roaring64Bitmap::serializedSizeInBytes).sum())
                .sum();
    }

    static long mix(long ledger, long entry) {
        long x = ledger * 0x9E3779B97F4A7C15L + entry;
        x = (x ^ (x >>> 32)) * 0xD6E8FEB86659FD93L;
        return x ^ (x >>> 32);
    }

    static Peer fill(Streams stream, long mask) {
        Peer peer = new Peer();
        for (int i = 0; i < stream.count(); i++) {
            peer.add(stream.ledgers[i], stream.entries[i], stream.deadlines[i] & mask);
        }
        return peer;
    }

    static long usedHeap() {
        for (int i = 0; i < 3; i++) {
            System.gc();
        }
        Runtime runtime = Runtime.getRuntime();
        return runtime.totalMemory() - runtime.freeMemory();
    }

    /** Of this thread alone: what else the machine does, and the collector's own thread, are left out. */
    static long cpuTime() {
        return THREADS.getCurrentThreadCpuTime();
    }

    static void say(String name, Object value) {
        System.out.println(name + " " + value);
    }

    public static void main(String[] args) {
        Streams stream = Streams.of(args[0], Integer.parseInt(args[1]));
        long mask = -1L << Integer.parseInt(args[2]);
        int rounds = Integer.parseInt(args[3]);
        memory(stream, mask);
        if (rounds > 0) {
            proof(stream, mask);
            times(stream, mask, rounds);
        }
    }

    private static void memory(Streams stream, long mask) {
        measureMemory(stream, mask, false); // loads classes, fills caches
        measureMemory(stream, mask, true);
    }

    private static void measureMemory(Streams stream, long mask, boolean isSaid) {
        long before = usedHeap();
        Peer peer = fill(stream, mask);
        long heap = usedHeap() - before;
        long serialized = peer.serializedBytes();
        peer.runOptimize();
        long heapOptimized = usedHeap() - before;
        if (isSaid) {
            say("heap", heap);
            say("serialized", serialized);
            say("heap_optimized", heapOptimized);
            say("serialized_optimized", peer.serializedBytes());
        }
        sink += peer.buckets.size();
    }

    private static void proof(Streams stream, long mask) {
        Peer peer = fill(stream, mask);
        long[] early = peer.drain(stream.halfway(), true);
        long[] late = peer.drain(Long.MAX_VALUE, true);
        say("early_count", early[0]);
        say("early_sum", Long.toUnsignedString(early[1]));
        say("late_count", late[0]);
        say("late_sum", Long.toUnsignedString(late[1]));
    }

    private static void times(Streams stream, long mask, int rounds) {
        double add = Double.MAX_VALUE;
        double drain = Double.MAX_VALUE;
        double drainOptimized = Double.MAX_VALUE;
        double objects = Double.MAX_VALUE;
        double optimize = Double.MAX_VALUE;
        for (int round = 0; round < rounds; round++) {
            long began = cpuTime();
            Peer peer = fill(stream, mask);
            double took = cpuTime() - began;
            if (round == 0) {
                say("add_cold", took / stream.count());
            }
            add = Math.min(add, took);
            began = cpuTime();
            sink += peer.drain(Long.MAX_VALUE, false)[1];
            drain = Math.min(drain, cpuTime() - began);

            peer = fill(stream, mask);
            began = cpuTime();
            peer.runOptimize();
            optimize = Math.min(optimize, cpuTime() - began);
            began = cpuTime();
            sink += peer.drain(Long.MAX_VALUE, false)[1];
            drainOptimized = Math.min(drainOptimized, cpuTime() - began);

            peer = fill(stream, mask);
            began = cpuTime();
            sink += peer.drainObjects(Long.MAX_VALUE).size();
            objects = Math.min(objects, cpuTime() - began);
        }
        say("add", add / stream.count());
        say("drain", drain / stream.count());
        say("drain_optimized", drainOptimized / stream.count());
        say("objects", objects / stream.count());
        say("optimize", optimize / stream.count());
    }
}
