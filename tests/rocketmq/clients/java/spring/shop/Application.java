package shop;

import org.springframework.boot.autoconfigure.SpringBootApplication;

/** A shop that sends its orders through RocketMQ and reads them from there; its application.properties say where. */
@SpringBootApplication
public class Application {
}
