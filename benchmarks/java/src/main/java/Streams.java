import java.util.Arrays;

/** The streams of {@code _streams.py}, number for number: ledger, entry and deadline (ms) of each nack. */
final class Streams {
    private static final int ENTRIES_PER_LEDGER = 50_000;
    private static final int PER_MS = 10;
    private static final int[] FOUR_DELAYS = {10_000, 20_000, 40_000, 60_000};

    final long[] ledgers;
    final long[] entries;
    final long[] deadlines;

    private Streams(long[] sequences, long[] deadlines) {
        int count = sequences.length;
        this.ledgers = new long[count];
        this.entries = new long[count];
        this.deadlines = deadlines;
        for (int i = 0; i < count; i++) {
            ledgers[i] = sequences[i] / ENTRIES_PER_LEDGER + 1;
            entries[i] = sequences[i] % ENTRIES_PER_LEDGER;
        }
    }

    int count() {
        return ledgers.length;
    }

    /** Between the earliest and the latest deadline. */
    long halfway() {
        return (Arrays.stream(deadlines).min().orElse(0) + Arrays.stream(deadlines).max().orElse(0)) / 2;
    }

    static Streams of(String name, int count) {
        switch (name) {
            case "in order":
                return inOrder(count, PER_MS, 60_000);
            case "random 30 %":
                return after(randomShare(count), 60_000);
            case "out of order by 500 ms":
                return outOfOrder(randomShare(count), 500);
            case "four delays":
                return mixedDelays(randomShare(count));
            case "scattered over 60 s":
                return scattered(randomShare(count), 60_000);
            case "scattered over an hour":
                return scattered(randomShare(count), 3_600_000);
            default:
                return inOrder(count, Integer.parseInt(name), 0);
        }
    }

    private static Streams inOrder(int count, int perMs, long delay) {
        long[] sequences = new long[count];
        long[] deadlines = new long[count];
        for (int i = 0; i < count; i++) {
            sequences[i] = i;
            deadlines[i] = i / perMs + delay;
        }
        return new Streams(sequences, deadlines);
    }

    private static long[] randomShare(int count) {
        Chance chance = new Chance(393);
        long[] sequences = new long[count];
        long sequence = -1;
        for (int i = 0; i < count; i++) {
            do {
                sequence++;
            } while (chance.below(100) >= 30);
            sequences[i] = sequence;
        }
        return sequences;
    }

    private static Streams after(long[] sequences, long delay) {
        return new Streams(sequences, Arrays.stream(sequences).map(s -> s / PER_MS + delay).toArray());
    }

    private static Streams outOfOrder(long[] sequences, int byMs) {
        Chance chance = new Chance(394);
        long[][] nacks = new long[sequences.length][];
        for (int i = 0; i < sequences.length; i++) {
            nacks[i] = new long[] {sequences[i] / PER_MS * 1_000 + chance.below(byMs * 1_000), sequences[i]};
        }
        Arrays.sort(nacks, (a, b) -> Long.compare(a[0], b[0])); // stable, as in Python
        return new Streams(
                Arrays.stream(nacks).mapToLong(nack -> nack[1]).toArray(),
                Arrays.stream(nacks).mapToLong(nack -> nack[0] / 1_000 + 60_000).toArray());
    }

    private static Streams mixedDelays(long[] sequences) {
        Chance chance = new Chance(395);
        return new Streams(
                sequences, Arrays.stream(sequences).map(s -> s / PER_MS + FOUR_DELAYS[chance.below(4)]).toArray());
    }

    private static Streams scattered(long[] sequences, int overMs) {
        Chance chance = new Chance(396);
        return new Streams(sequences, Arrays.stream(sequences).map(s -> chance.below(overMs)).toArray());
    }

    private static final class Chance {
        private long state;

        Chance(long seed) {
            state = seed;
        }

        int below(int bound) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            return (int) ((state >>> 33) % bound);
        }
    }
}
