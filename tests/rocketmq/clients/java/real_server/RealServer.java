import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.proxy.ProxyStartup;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;

/**
 * Apache RocketMQ itself in one process on loopback: nameserver, broker and gRPC proxy. What the clients do with
 * it is what they are to do with tierlog. Answers every line when it is up, and ends with its input.
 * Arguments: FOLDER NAMESERVER_PORT BROKER_PORT HA_PORT GRPC_PORT [NAME=VALUE of the broker, before ours]...
 */
final class RealServer {
    private RealServer() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Path folder = Path.of(arguments[0]);
        String nameserver = "127.0.0.1:" + arguments[1];
        System.setProperty("rocketmq.home.dir", folder.toString());
        startNameserver(folder, Integer.parseInt(arguments[1]));
        Path broker = folder.resolve("broker.conf");
        List<String> settings = new ArrayList<>(List.of(
            "brokerName=broker-a", "brokerClusterName=DefaultCluster", "brokerId=0", "brokerIP1=127.0.0.1",
            "brokerIP2=127.0.0.1", "listenPort=" + arguments[2], "haListenPort=" + arguments[3],
            "bindAddress=127.0.0.1", "namesrvAddr=" + nameserver, "storePathRootDir=" + folder.resolve("store"),
            "storePathCommitLog=" + folder.resolve("store/commitlog"), "mappedFileSizeCommitLog=16777216",
            "mappedFileSizeConsumeQueue=600000", "maxIndexNum=200000", "maxHashSlotNum=50000",
            "mappedFileSizeTimerLog=1048576", "autoCreateTopicEnable=true", "transactionCheckInterval=2000",
            "transactionTimeOut=1000", "recallMessageEnable=true", "flushDiskType=SYNC_FLUSH", "diskMaxUsedSpaceRatio=99",
            // until its first flush it takes a core
            "transactionMetricFlushInterval=100"));
        settings.addAll(List.of(arguments).subList(5, arguments.length));
        Files.write(broker, settings);
        Path proxy = folder.resolve("proxy.json");
        Files.writeString(proxy, "{\"rocketMQClusterName\": \"DefaultCluster\", \"namesrvAddr\": \"" + nameserver
            + "\", \"grpcServerPort\": " + arguments[4] + ", \"remotingListenPort\": 0,"
            + " \"localServeAddr\": \"127.0.0.1\"}");
        ProxyStartup.main(new String[] {"-pm", "local", "-n", nameserver, "-bc", broker.toString(), "-pc",
            proxy.toString()});
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        while (lines.readLine() != null) {
            answers.println("here");
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void startNameserver(Path folder, int port) throws Exception {
        NamesrvConfig config = new NamesrvConfig();
        config.setRocketmqHome(folder.toString());
        config.setKvConfigPath(folder.resolve("namesrv/kvConfig.json").toString());
        config.setConfigStorePath(folder.resolve("namesrv/namesrv.properties").toString());
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(port);
        server.setBindAddress("127.0.0.1");
        NamesrvController controller = new NamesrvController(config, server, new NettyClientConfig());
        if (!controller.initialize()) {
            throw new IllegalStateException("the nameserver does not start");
        }
        controller.start();
    }
}
