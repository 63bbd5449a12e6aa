package mqbridge.tests;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;

/**
 * Clients of open and of locked clusters.
 *
 * <pre>
 * --url pulsar://host:port, or pulsar+ssl://host:port with
 * --authorities FILE   PEM, that the servers' certificates are verified by
 * --token-file FILE    read again whenever the client asks
 * --certificate FILE   PEM, with --key FILE: who we are
 * </pre>
 */
final class PulsarClients {
    private PulsarClients() {}

    static PulsarClient open(Args args) throws PulsarClientException {
        ClientBuilder builder = PulsarClient.builder().serviceUrl(args.text("url"));
        String authorities = args.text("authorities", null);
        if (authorities != null) {
            builder.tlsTrustCertsFilePath(authorities).enableTlsHostnameVerification(true);
        }
        String token = args.text("token-file", null);
        if (token != null) {
            builder.authentication(AuthenticationFactory.token(() -> read(Path.of(token))));
        }
        String certificate = args.text("certificate", null);
        if (certificate != null) {
            builder.authentication(AuthenticationFactory.TLS(certificate, args.text("key")));
        }
        return builder.build();
    }

    private static String read(Path file) {
        try {
            return Files.readString(file).strip();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
