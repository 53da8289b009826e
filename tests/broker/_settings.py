"""The standalone broker's configuration: small, on loopback only, without what these tests never use."""

from __future__ import annotations

HOST = "127.0.0.1"

OPENS = [
    *(
        f"java.base/{package}"
        for package in (
            "java.lang",
            "java.io",
            "java.nio",
            "java.util.zip",
            "jdk.internal.misc",
            "jdk.internal.loader",
            "sun.net",
        )
    ),
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
]
JVM = [
    "-Xmx512m",
    "-XX:TieredStopAtLevel=1",  # halves the processor time of a start
    "-XX:MaxDirectMemorySize=512m",
    "-Dio.netty.tryReflectionSetAccessible=true",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENS),
]

# BookKeeper takes the port that it is given only with allowEphemeralPorts, and by default listens on all addresses.
# A retention keeps acknowledged messages, for tests that move a subscription back. The broker stores acknowledgements
# at most once a second, and the rest with the next acknowledgement or at a flush, which by default happens each
# minute.
SETTINGS = {
    "bindAddress": HOST,
    "advertisedAddress": HOST,
    "clusterName": "standalone",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerCursorPositionFlushSeconds": "1",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "allowAutoTopicCreation": "true",
    "allowAutoTopicCreationType": "non-partitioned",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "defaultRetentionTimeInMinutes": "60",
    "defaultRetentionSizeInMB": "256",
    "transactionCoordinatorEnabled": "false",
    "functionsWorkerEnabled": "false",
    "systemTopicEnabled": "false",
    "topicLevelPoliciesEnabled": "false",
    "loadBalancerEnabled": "false",
    "allowEphemeralPorts": "true",
    "nettyMaxFrameSizeBytes": str((5 << 20) + (10 << 10)),  # BookKeeper's, for the broker's largest messages
    "journalSyncData": "false",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.98",
}
