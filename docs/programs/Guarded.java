// java -cp postgresql.jar Guarded.java ACCOUNT AMOUNT: needs the JDBC driver, JDBC_URL, and the LATCHGATE_LEASE of `latchgate lock`.
import java.sql.DriverManager;
import java.sql.SQLException;
import org.postgresql.util.PSQLException;

public class Guarded {
    public static void main(String[] arguments) throws SQLException {
        int account = Integer.parseInt(arguments[0]), amount = Integer.parseInt(arguments[1]);
        try (var connection = DriverManager.getConnection(System.getenv("JDBC_URL"))) {
            connection.setAutoCommit(false);
            try (var update = connection.prepareStatement("update accounts set balance = balance + ? where id = ?");
                    var guard = connection.prepareStatement("select latchgate.guard(?, ?)")) {
                update.setInt(1, amount);
                update.setInt(2, account);
                update.executeUpdate();
                guard.setString(1, "accounts/" + account);
                guard.setString(2, System.getenv("LATCHGATE_LEASE"));
                guard.execute();
                connection.commit();
            } catch (PSQLException error) {
                connection.rollback();
                if (!"LG001".equals(error.getSQLState())) throw error;
                System.err.println("not done: the lease was lost (" + error.getServerErrorMessage().getDetail() + ")");
                System.exit(1);
            }
        }
    }
}
