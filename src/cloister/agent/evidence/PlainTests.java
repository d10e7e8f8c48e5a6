import java.lang.annotation.Annotation;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;

/** Runs the methods of a test class in an ordinary program, by reflection. */
public class MAIN {
    private static boolean has(Method method, String... names) {
        for (Annotation one : method.getAnnotations()) {
            for (String name : names) {
                if (one.annotationType().getSimpleName().equals(name)) {
                    return true;
                }
            }
        }
        return false;
    }

    private static void each(Object object, String... names) throws Throwable {
        for (Method method : CLASS.class.getDeclaredMethods()) {
            if (has(method, names)) {
                method.setAccessible(true);
                try {
                    method.invoke(object);
                } catch (InvocationTargetException error) {
                    throw error.getCause();
                }
            }
        }
    }

    public static void main(String[] given) throws Throwable {
        List<String> lines = new ArrayList<>();
        each(null, "BeforeAll", "BeforeClass");
        for (Method method : CLASS.class.getDeclaredMethods()) {
            boolean plain = method.getParameterCount() == 0 && !has(method, "Disabled", "Ignore");
            if (!has(method, "Test") || !plain) {
                continue;
            }
            String status = "ok";
            String why = "";
            try {
                java.lang.reflect.Constructor<?> make = CLASS.class.getDeclaredConstructor();
                make.setAccessible(true);
                Object object = make.newInstance();
                each(object, "BeforeEach", "Before");
                method.setAccessible(true);
                method.invoke(object);
                each(object, "AfterEach", "After");
            } catch (InvocationTargetException error) {
                status = "failed";
                why = String.valueOf(error.getCause());
            }
            why = why.replaceAll("[^\\w .,:<>()=-]", " ");
            lines.add("[\"" + method.getName() + "\",\"" + status + "\",\"" + why + "\"]");
            java.nio.file.Files.write(java.nio.file.Paths.get("OUT"), lines); // the next test may never end
        }
        System.exit(0);
    }
}
