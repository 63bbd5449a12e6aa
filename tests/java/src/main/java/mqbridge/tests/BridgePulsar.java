package mqbridge.tests;

import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;

/** A Pulsar client of the bridge: {@code --authorities FILE} for TLS, {@code --token T} says who it is. */
final class BridgePulsar {
    private BridgePulsar() {}

    static PulsarClient client(String url, Args args) throws PulsarClientException {
        ClientBuilder builder = PulsarClient.builder().serviceUrl(url);
        String authorities = args.text("authorities", null);
        if (authorities != null) {
            builder.tlsTrustCertsFilePath(authorities).enableTlsHostnameVerification(true);
        }
        String token = args.text("token", null);
        if (token != null) {
            builder.authentication(AuthenticationFactory.token(token));
        }
        return builder.build();
    }
}
